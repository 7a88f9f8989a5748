#!/usr/bin/env bash
# Prove that a fresh clone works on a bare machine: the last commit, cloned to a temporary directory; an empty home, so
# no cache and no configuration of this user; a PATH of links to everyday tools, without Java, uv or an environment.
#
# Usage: scripts/fresh-clone-check.sh COMMAND [ARGUMENT...]     e.g. scripts/fresh-clone-check.sh make demo
#        PYTHON=/usr/bin/python3.12 scripts/fresh-clone-check.sh make test
#
# Exits with the command's code and says how long it took. KEEP=1 leaves the directory for a look.
set -euo pipefail

if [ $# -eq 0 ]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi

repository=$(cd "$(dirname "$0")/.." && pwd)
# The Python itself, not a version manager's wrapper, which would look for its files in the home.
python=$("${PYTHON:-python3}" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
machine=$(mktemp -d)
[ "${KEEP:-}" ] && echo "machine: $machine" >&2 || trap 'rm -rf "$machine"' EXIT
mkdir "$machine/home" "$machine/bin"

# The everyday tools: what a shell, git, make and Spark's start script call, and what tests start. Not java, whatever else
# is beside it.
for tool in as awk basename bash cat chmod cp cut date dirname env expr find gcc getconf git grep head id jq ld ln ls make \
  hostname mariadb-install-db mariadbd mkdir mktemp mount mv node nohup nsenter npm openssl prometheus promtool ps pwd \
  readlink redis-server rm rmdir sed setpriv setsid sh sleep sort systemd-analyze tail tee timeout touch tr true umount \
  uname unshare wc which xargs; do
  if found=$(type -P "$tool"); then
    ln -s "$found" "$machine/bin/$tool"
  fi
done
ln -s "$python" "$machine/bin/python3"

# What a machine says about where packages come from is part of the machine; the user's home is not.
kept=()
while IFS='=' read -r name value; do
  case $name in
    *_CACHE_DIR | NPM_CONFIG_CACHE | npm_config_cache) ;;
    PIP_* | UV_* | NPM_CONFIG_* | npm_config_* | NODE_EXTRA_CA_CERTS | SSL_CERT_* | REQUESTS_CA_BUNDLE | *_proxy | *_PROXY)
      kept+=("$name=$value")
      ;;
    LANG | CI) kept+=("$name=$value") ;;
  esac
done < <(env)

git clone --quiet "$repository" "$machine/penstock"
cd "$machine/penstock"
started=$SECONDS
code=0
env -i "${kept[@]}" HOME="$machine/home" PATH="$machine/bin" "$@" || code=$?
echo "fresh clone: $* ended with $code after $((SECONDS - started)) s" >&2
exit "$code"
