#!/bin/sh
# usage: system-packages.sh "PACKAGE …" NEED:PACKAGE …
# A need is a command, or a shared library (lib….so.N). Installs the Debian packages when one is missing and we are
# root; else names exactly what to install.
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
    # A machine that runs no SSH server should not begin to because the lab needs the program.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    # shellcheck disable=SC2086  # the list is meant to be split
    apt-get install -y -qq $packages >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq $packages >/dev/null; }
else
    echo "Missing for the window or for the tests on real SSH hosts:$missing." >&2
    echo "To have them: sudo apt-get install$missing" >&2
fi
