"""The history of a job is evidence: the database itself refuses to change or remove a line of it."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION pipeline_job_event_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pipeline_job_event is append-only';
END $$;
CREATE TRIGGER pipeline_job_event_append_only BEFORE UPDATE OR DELETE ON pipeline_job_event
    FOR EACH ROW EXECUTE FUNCTION pipeline_job_event_refuse_change();
"""
BACKWARD = """
DROP TRIGGER pipeline_job_event_append_only ON pipeline_job_event;
DROP FUNCTION pipeline_job_event_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("pipeline", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
