#!/bin/sh
# usage: system-packages.sh "PACKAGE …" NEED:PACKAGE …
# NEED is a command or a shared library (lib….so.N). If one is missing, installs the Debian packages as root; without
# root, prints the packages to install.
set -eu
packages=$1
shift
missing=
libraries=$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null || true)
for pair; do
    case $pair in
        lib*.so.*) case $libraries in *"${pair%:*}"*) ;; *) missing="$missing ${pair#*:}" ;; esac ;;
        *) command -v "${pair%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}" ;;
    esac
done
"${PYTHON:-python3}" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing system packages:$missing …"
    export DEBIAN_FRONTEND=noninteractive
    # Installing the SSH server, whose program the lab needs, must not start it as a service.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    # shellcheck disable=SC2086  # the list is split intentionally
    apt-get install -y -qq $packages >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq $packages >/dev/null; }
else
    echo "Missing for the window or for the tests on real SSH hosts:$missing." >&2
    echo "To have them: sudo apt-get install$missing" >&2
fi
