"""An operator's act is evidence too: the database refuses to change or remove it."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION pipeline_replay_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER pipeline_replay_append_only BEFORE UPDATE OR DELETE ON pipeline_replay
    FOR EACH ROW EXECUTE FUNCTION pipeline_replay_refuse_change();
CREATE TRIGGER pipeline_replayed_job_append_only BEFORE UPDATE OR DELETE ON pipeline_replayed_job
    FOR EACH ROW EXECUTE FUNCTION pipeline_replay_refuse_change();
"""
BACKWARD = """
DROP TRIGGER pipeline_replayed_job_append_only ON pipeline_replayed_job;
DROP TRIGGER pipeline_replay_append_only ON pipeline_replay;
DROP FUNCTION pipeline_replay_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("pipeline", "0003_replays")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
