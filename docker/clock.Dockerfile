# Redis with a wall clock that can be moved: the server is untouched, a small library answers its questions about time.
# Built in the folder labkit/clock:    docker build -f docker/clock.Dockerfile labkit/clock
ARG REDIS_IMAGE=redis:7.4.2
FROM ${REDIS_IMAGE} AS build
USER root
RUN apt-get update -qq && apt-get install -qq --no-install-recommends gcc libc6-dev
COPY shim.c /
RUN gcc -O2 -shared -fPIC -o /clock.so /shim.c -ldl

FROM ${REDIS_IMAGE}
COPY --from=build /clock.so /opt/labkit/clock.so
