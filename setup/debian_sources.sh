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
