# Airflow and Spark in one image: every process of docker-compose.yaml's Airflow services, and the drivers that they start.
#
# Packages and jars come from uv.lock and ivy.lock through the bootstrap, exactly as on a laptop; the Python and Java below are
# the versions that the tests run on. tests/unit/stack/test_compose.py compares.
FROM python:3.11-slim-bookworm

# procps: `ps`, for whoever looks into a container. default-jre-headless is Java 17 here.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 50000 sluice \
    && install --directory --owner=sluice /opt/sluice /var/lib/sluice/checkpoints /var/lib/sluice/logs \
        /var/lib/sluice/reports /var/lib/sluice/airflow

ENV JAVA_HOME=/usr/lib/jvm/default-java
USER sluice
WORKDIR /opt/sluice

# What the packages and jars follow from comes first, so that a change of code does not install them again.
COPY --chown=sluice pyproject.toml uv.lock ivy.xml ivy.lock LICENSE README.md ./
COPY --chown=sluice include/sluice include/sluice
COPY --chown=sluice plugins plugins
COPY --chown=sluice jobs jobs
RUN SLUICE_NO_INSTALL=1 python include/sluice/stack/bootstrap.py \
    && .venv/bin/python -c "import json, os; os.symlink(json.load(open('.sluice/bootstrap.json'))['jars'], 'jars')"

COPY --chown=sluice dags dags
COPY --chown=sluice include/pipelines include/pipelines

ENV PATH=/opt/sluice/.venv/bin:$PATH \
    SLUICE_HOME=/opt/sluice \
    SLUICE_JARS=/opt/sluice/jars \
    SLUICE_PIPELINES=/opt/sluice/include/pipelines \
    SPARK_HOME=/opt/sluice/.venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/sluice/.venv/bin/python \
    PYTHONUNBUFFERED=1 \
    GX_ANALYTICS_ENABLED=false
