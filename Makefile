# Everything is set up by the first target that needs it, below .venv and .local.
#
#   make demo                         sends sample pictures through the real stack and checks what comes back
#   make demo FILES='a.jpg b.png'     sends yours instead; REPORT=out.json writes the outcome down as well
#   make up                           runs the stack until Ctrl-C and prints its addresses and a login
#   make test [ARGS='-k name -x']     runs the tests with a PostgreSQL and a RabbitMQ of their own
#   make lint                         format, lint, types, layers, migrations, deployment
#   make bench [ONLY=row]             measures this machine
#   make chaos [SECONDS_TO_RUN=300]   kills, stops and cuts the stack while files are sent, and checks that none is lost;
#                                     SEED=n repeats a run, REPORT=out.json as above (docs/chaos.md has more)
#
# CELERY_BROKER_URL, where set, names the RabbitMQ to use instead of a private one.

BOOTSTRAP := sh config/local/bootstrap.sh
PYTHON := .venv/bin/python
LOCAL := exec $(PYTHON) -m config.local

# Settings as in production, for the checks that start no service.
PRODUCTION := env -u LOCAL_STACK -u INSECURE_HTTP -u DEBUG ALLOWED_HOSTS=holdfast.example \
	SECRET_KEY=for-checks-only-0123456789-abcdefghijklmnopqrstuvwxyz-0123456789 \
	DATABASE_URL=postgres://holdfast@127.0.0.1/holdfast CELERY_BROKER_URL=amqp://127.0.0.1// \
	STORAGE_ROOT=/var/lib/holdfast

# Most tests wait most of the time, so two processes share them, each with services of its own. Named tests, and a
# broker that was given, get one process.
SIDE_BY_SIDE := --dist worksteal --tx popen --tx 'popen//python=env -u CELERY_BROKER_URL $(PYTHON) -m config.local exec -- $(PYTHON)'

.PHONY: demo up test lint bench chaos

demo:
	@$(BOOTSTRAP) local
	@$(LOCAL) demo $(if $(REPORT),--report '$(REPORT)') -- $(FILES)

up:
	@$(BOOTSTRAP) local
	@$(LOCAL) up

test:
	@$(BOOTSTRAP) dev
	@$(LOCAL) exec -- pytest $(or $(ARGS),$(if $(CELERY_BROKER_URL),,$(SIDE_BY_SIDE)))

bench:
	@$(BOOTSTRAP) dev
	@$(LOCAL) exec --durable -- python -m bench $(ONLY)

chaos:
	@$(BOOTSTRAP) dev
	@exec $(PYTHON) -m bench.chaos $(if $(SECONDS_TO_RUN),--seconds '$(SECONDS_TO_RUN)') \
		$(if $(SEED),--seed '$(SEED)') $(if $(ONLY),--only '$(ONLY)') $(if $(TARGET),--target '$(TARGET)') $(if $(REPORT),--report '$(REPORT)')

lint:
	@$(BOOTSTRAP) dev
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	$(PRODUCTION) .venv/bin/mypy .
	.venv/bin/lint-imports
	$(PRODUCTION) $(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	$(PRODUCTION) $(PYTHON) manage.py check --deploy --fail-level WARNING
	$(PYTHON) -m config.compose_check
