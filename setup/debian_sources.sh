# What this machine's apt knows of Debian's mirrors. Sourced by the scripts that fetch from another release or make a
# base image: the repository names no mirror, so that whatever this machine is set up to use is used.
# shellcheck shell=bash

# debian_mirror: address of the Debian archive.
debian_mirror() {
    debian_indexes | awk '$2 !~ /-(security|updates|backports)/ { print $1; exit }'
}

# debian_sources RELEASE: lines of a sources.list for that release, security and updates included where apt has them.
debian_sources() {
    debian_indexes | awk -v release="$1" 'index($2, release) == 1 { print "deb", $1, $2, "main" }' | sort -u
}

# debian_indexes: 'ADDRESS SUITE' of each index that apt has of Debian.
debian_indexes() {
    # shellcheck disable=SC2016  # apt expands these
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(ORIGIN) $(CREATED_BY)' 2>/dev/null |
        awk '$3 == "Debian" && $4 == "Packages" { print $1, $2 }' | sort -u
}

# scratch_apt DIRECTORY KIND RELEASE: makes an apt configuration, DIRECTORY/apt.conf, that knows only the main archive of
# that release (KIND is deb or deb-src), so that the machine's own package lists stay as they are.
scratch_apt() {
    local root=$1 kind=$2 release=$3 mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || fail "apt on this machine has no Debian source: run 'apt-get update', or add one, then try again"
    mkdir -p "$root/lists/partial" "$root/archives/partial"
    echo "$kind [signed-by=$keyring] $mirror $release main" >"$root/sources.list"
    cat >"$root/apt.conf" <<CONF
Dir::Etc::SourceList "$root/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$root/lists";
Dir::Cache "$root";
Dir::Cache::Archives "$root/archives";
APT::Sandbox::User "root";
CONF
}
