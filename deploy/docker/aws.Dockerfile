# SQS and S3 on this host, for trying things out: moto's server, in memory. Nothing for production.
#
#   docker build --file deploy/docker/aws.Dockerfile --tag penstock-aws .
FROM python:3.13-slim-bookworm
COPY locks/local-aws.txt /tmp/local-aws.txt
RUN python -m pip install --no-cache-dir --require-hashes --requirement /tmp/local-aws.txt \
    && useradd --uid 10002 --create-home --shell /usr/sbin/nologin moto
USER 10002
WORKDIR /home/moto
EXPOSE 5000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=20s --retries=5 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/moto-api/', timeout=4).close()"]
ENTRYPOINT ["moto_server", "--host", "0.0.0.0", "--port", "5000"]
