#!/bin/sh
# Install packages with apt-get and leave the system's services as they are:
# nothing is started, and nothing is switched on for the next boot.
#
#   apt.sh ROOT PACKAGE...      as root; ROOT is / (a test gives another folder)
set -eu
root=${1%/}
shift
policy=$root/usr/sbin/policy-rc.d
kept=$policy.kept-by-labkit

exec 9> "$root/run/labkit-apt.lock" # two set-ups at once take turns
flock -w 900 9

# The links that switch a service on: systemd's own, and those of System V scripts.
switched_on() {
    find "$root/etc/systemd/system" "$root"/etc/rc[2-5].d -type l \
        \( -path '*/systemd/system/*' -o -name 'S[0-9][0-9]*' \) 2> /dev/null | LC_ALL=C sort || true
}

restore_policy() {
    if grep -qs 'set up by labkit' "$policy"; then rm -f "$policy"; fi
    if [ -e "$kept" ] || [ -L "$kept" ]; then mv -f "$kept" "$policy"; fi
}

finish() {
    switched_on > "$notes/after"
    LC_ALL=C comm -13 "$notes/before" "$notes/after" > "$notes/new"
    sed -n 's#.*/rc[2-5]\.d/S[0-9][0-9]##p' "$notes/new" | sort -u | while read -r script; do
        update-rc.d "$script" disable
    done
    while read -r link; do
        case $link in */systemd/system/*) rm -f "$link" ;; esac
    done < "$notes/new"
    restore_policy
    rm -rf "$notes"
}

restore_policy # in case an earlier run was killed half-way
notes=$(mktemp -d)
switched_on > "$notes/before"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# Maintainer scripts ask this file before they start a service: 101 means no.
if [ -e "$policy" ] || [ -L "$policy" ]; then mv "$policy" "$kept"; fi
mkdir -p "${policy%/*}"
printf '#!/bin/sh\n# set up by labkit for the time of one installation\nexit 101\n' > "$policy"
chmod 755 "$policy"

alone=
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
apt() {
    $alone apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@" < /dev/null
}
get="install --yes --no-install-recommends --no-upgrade --no-remove"

# A first try tells whether the package lists are there and still true.
if ! apt $get --download-only "$@" > /dev/null 2>&1; then
    apt update || true
    apt $get --download-only "$@"
fi

# From here on Ctrl-C waits: in a session of its own, dpkg is not hit and leaves no package half installed.
trap '' INT TERM HUP
alone='setsid --wait'
apt $get "$@"
