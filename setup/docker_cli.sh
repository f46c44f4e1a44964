# Which docker command to build with. Sourced.
# shellcheck shell=bash

# docker_cli: a docker command that builds with BuildKit: Debian's does by itself, a newer one only with its plugin.
docker_cli() {
    if docker buildx version >/dev/null 2>&1; then
        echo docker
    elif [[ -x /usr/bin/docker ]]; then
        echo /usr/bin/docker
    else
        fail "docker can't build with BuildKit: install Debian's docker.io, or docker's buildx plugin"
    fi
}
