# Airflow and Spark in one image, for the Airflow services of docker-compose.yaml and the drivers that they start.
#
# The bootstrap installs packages and jars from uv.lock and ivy.lock, exactly as on a laptop. The Python and Java below are
# the versions that the tests run on; tests/unit/stack/test_compose.py compares them.
FROM python:3.11-slim-bookworm

# procps provides `ps` for debugging in a container. default-jre-headless is Java 17 in this release of Debian.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 50000 sluice \
    && install --directory --owner=sluice /opt/sluice /var/lib/sluice/checkpoints /var/lib/sluice/logs \
        /var/lib/sluice/reports /var/lib/sluice/airflow \
    && install --directory --owner=sluice --mode=0700 /var/lib/sluice/seaweedfs-security

ENV JAVA_HOME=/usr/lib/jvm/default-java
USER sluice
WORKDIR /opt/sluice

# The files that determine the packages and jars come first, so that a change of the DAGs does not install them again.
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
