# Your app on top of Penstock's image. Here it is the example in app/; copy this file beside your own.
#
#   docker build --file deploy/docker/app.Dockerfile --tag shop:1.0.0 deploy/docker
#
# What your handlers import goes into the same environment, from a lock of yours:
#   COPY requirements.txt /tmp/
#   USER root
#   RUN pip install --python /opt/penstock/bin/python --require-hashes --requirement /tmp/requirements.txt
#   USER 10001:10001
ARG PENSTOCK=penstock:latest
# The image that you name with --build-arg PENSTOCK has the tag that you gave it.
# hadolint ignore=DL3006
FROM ${PENSTOCK}
COPY app/ /app/
CMD ["worker", "shop:app"]
