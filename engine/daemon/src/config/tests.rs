use super::*;

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

const ENGINE_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

const GOOD: &str = r#"
    system = "weir"
    provider = "tcp"
    fabric_port = 10100
    targets = 2
    management_listen = "0.0.0.0:10001"
    metrics_listen = ":9191"
    data = "/var/lib/weir"
    target_size = "8GiB"
    log = "info"
    [tls]
    ca = "tls/ca.crt"
    cert = "/etc/weir/tls/tls.crt"
    key = "tls/tls.key"
    [auth]
    system_key = "system.key"
    engine_key = "engines.key"
    [[engines]]
    rank = 0
    host = "weir-0"
    fabric_port = 10100
    targets = 2
    management = "weir-0:10001"
    [[engines]]
    rank = 1
    host = "weir-1"
    fabric_port = 10100
    targets = 2
    management = "weir-1:10001"
"#;

fn load(text: &str, flags: Flags) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("engine.toml");
    std::fs::write(&config, text).expect("the file");
    std::fs::write(folder.path().join("system.key"), KEY).expect("the key");
    std::fs::write(folder.path().join("engines.key"), ENGINE_KEY).expect("the key");
    let loaded = Config::load(&Flags { config, ..flags });
    loaded
        .map(|mut config| {
            config.tls.ca = config.tls.ca.strip_prefix(folder.path()).expect("relative").to_owned();
            config
        })
        .map_err(|error| error.to_string())
}

fn ranked() -> Flags {
    Flags { rank: Some(1), host: Some("weir-1".to_owned()), ..Flags::default() }
}

#[test]
fn a_file_with_rank_and_host_from_flags_is_complete() {
    let config = load(GOOD, ranked()).expect("a good file");
    assert_eq!((config.rank, config.host.as_str(), config.listen.as_str()), (Rank(1), "weir-1", "0.0.0.0"));
    assert_eq!((config.target_size, config.index_memory), (8 << 30, 1 << 30));
    assert_eq!(config.metrics_listen.port(), 9191);
    assert_eq!(config.tls.ca, Path::new("tls/ca.crt"), "relative to the file");
    assert_eq!(config.tls.cert, Path::new("/etc/weir/tls/tls.crt"));
    assert_eq!(config.engines.engines.len(), 2);
}

#[test]
fn a_list_of_engines_has_its_length_as_version_unless_it_says_another() {
    let plain = load(GOOD, ranked()).expect("a good file");
    assert_eq!(plain.engines.version, 2);
    let numbered = load(&format!("engines_version = 17\n{GOOD}"), ranked()).expect("a good file");
    assert_eq!(numbered.engines.version, 17);
}

#[test]
fn the_receiver_not_ready_protocol_is_for_cxi() {
    let flags = |protocol: &str, provider: &str| Flags {
        fabric_protocol: Some(protocol.to_owned()),
        provider: Some(provider.to_owned()),
        ..ranked()
    };
    let chosen = load(GOOD, flags("receiver-not-ready", "cxi")).expect("cxi has it");
    assert_eq!(chosen.protocol, Protocol::ReceiverNotReady);
    assert_eq!(load(GOOD, flags("default", "tcp")).expect("always").protocol, Protocol::Usual);
    for (protocol, provider) in [("receiver-not-ready", "tcp"), ("rnr", "cxi")] {
        let error = load(GOOD, flags(protocol, provider)).expect_err("not there");
        assert!(error.contains("fabric_protocol"), "{error}");
    }
}

#[test]
fn addresses_are_at_ports_or_published_as_the_provider_allows() {
    let flags = |addresses: Option<&str>, provider: &str| Flags {
        fabric_addresses: addresses.map(str::to_owned),
        provider: Some(provider.to_owned()),
        ..ranked()
    };
    for (addresses, provider, addressing) in [
        (None, "tcp", Addressing::ByProvider),
        (None, "cxi", Addressing::ByProvider),
        (Some("published"), "cxi", Addressing::Published),
        (Some("published"), "tcp", Addressing::Published),
        (Some("ports"), "tcp", Addressing::Ports),
    ] {
        assert_eq!(load(GOOD, flags(addresses, provider)).expect("possible").addressing, addressing);
    }
    for (addresses, provider) in [("ports", "cxi"), ("guessed", "tcp")] {
        let error = load(GOOD, flags(Some(addresses), provider)).expect_err("not there");
        assert!(error.contains("fabric_addresses"), "{error}");
    }
}

#[test]
fn the_cache_is_as_large_as_flag_or_file_say() {
    let cache = |flag: Option<&str>| {
        let flags = Flags { cache_memory: flag.map(str::to_owned), ..ranked() };
        load(&GOOD.replace("log = ", "cache_memory = \"64MiB\"\nlog = "), flags)
            .map(|config| config.cache_memory)
    };
    assert_eq!(cache(None), Ok(64 << 20));
    assert_eq!(cache(Some("0")), Ok(0));
}

#[test]
fn devices_are_one_for_each_target_and_of_a_kind_that_this_build_has() {
    let with = |devices: &[&str]| {
        let devices = devices.iter().map(PathBuf::from).collect();
        load(GOOD, Flags { devices, ..ranked() })
    };
    let config = with(&["/dev/ng0n1", "/dev/nvme1n1"]).expect("two devices for two targets");
    assert_eq!(config.devices[1], Path::new("/dev/nvme1n1"));
    for (devices, words) in [
        (&["/dev/ng0n1"][..], "as many devices as there are targets"),
        (&["/dev/ng0n1", "/dev/ng0n1"], "a device of its own"),
        (&["/dev/ng0n1", "ng1n1"], "absolute paths"),
        (&["/dev/ng0n1", "spdk:Nvme0n1"], "spdk_config"),
    ] {
        let refused = with(devices).expect_err("impossible");
        assert!(refused.contains("`devices`") && refused.contains(words), "{refused}");
    }
    let spdk = Flags { spdk_config: Some("/etc/weir/spdk.json".into()), ..ranked() };
    let outcome = load(GOOD, spdk);
    assert_eq!(outcome.is_ok(), cfg!(feature = "spdk"), "{outcome:?}");
    for memory in ["1MiB", "1TiB", "much"] {
        let flags = Flags {
            spdk_config: Some("/etc/weir/spdk.json".into()),
            spdk_memory: Some(memory.to_owned()),
            ..ranked()
        };
        let refused = load(GOOD, flags).expect_err("impossible");
        assert!(refused.contains("`spdk_memory`"), "{refused}");
    }
}

#[test]
fn flags_win_over_the_file() {
    let flags = Flags { log: Some("debug".to_owned()), target_size: Some("64Mi".to_owned()), ..ranked() };
    let config = load(GOOD, flags).expect("a good file");
    assert_eq!((config.log.as_str(), config.target_size), ("debug", 64 << 20));
    let moved = load(GOOD, Flags { fabric_port: Some(7), ..ranked() }).expect_err("contradicts the list");
    assert!(moved.contains("engines (rank 1)") && moved.contains("fabric_port 7"), "{moved}");
}

#[test]
fn a_stall_is_borne_for_ten_minutes_unless_told_otherwise() {
    let limit = |text: &str| load(&GOOD.replace("log = ", text), ranked()).map(|config| config.stall_limit);
    assert_eq!(limit("log = "), Ok(Duration::from_mins(10)));
    assert_eq!(limit("stall_limit = 90\nlog = "), Ok(Duration::from_secs(90)));
    for seconds in [64, 86_401] {
        let error = limit(&format!("stall_limit = {seconds}\nlog = ")).expect_err("out of range");
        assert!(error.contains("`stall_limit`") && error.contains("65 to 86400 seconds"), "{error}");
    }
}

#[test]
fn the_scrubber_runs_weekly_unless_told_otherwise() {
    let scrub = |text: &str| load(&GOOD.replace("log = ", text), ranked()).map(|config| config.scrub);
    let weekly = ScrubConfig { bytes_per_second: 32 << 20, interval: Duration::from_hours(168) };
    assert_eq!(scrub("log = "), Ok(Some(weekly)));
    let daily = ScrubConfig { bytes_per_second: 1 << 20, interval: Duration::from_hours(24) };
    let text = "scrub_rate = \"1MiB\"\nscrub_interval = 86400\nlog = ";
    assert_eq!(scrub(text), Ok(Some(daily)));
    assert_eq!(scrub("scrub_rate = \"0\"\nlog = "), Ok(None));
    for (text, key) in
        [("scrub_rate = \"7\"\nlog = ", "scrub_rate"), ("scrub_interval = 5\nlog = ", "scrub_interval")]
    {
        let error = scrub(text).expect_err(key);
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn errors_name_the_key() {
    let cases = [
        (GOOD.replace("targets = 2", "targets = 0"), "`targets`"),
        (GOOD.replace("\"tcp\"", "\"udp\""), "`provider` = \"udp\""),
        (GOOD.replace("log = ", "receive_mode = \"none\"\nlog = "), "`receive_mode` = \"none\""),
        (GOOD.replace("log = ", "memory_registration = \"all\"\nlog = "), "`memory_registration` = \"all\""),
        (GOOD.replace("8GiB", "8 bananas"), "`target_size` = \"8 bananas\""),
        (GOOD.replace("8GiB", "99999999999TiB"), "`target_size`"),
        (GOOD.replace("log = \"info\"", "index_memory = \"1MiB\""), "`index_memory` = \"1048576\""),
        (GOOD.replace("log = ", "cache_memory = \"1MiB\"\nlog = "), "`cache_memory` = \"1MiB\""),
        (GOOD.replace("0.0.0.0:10001", "somewhere"), "`management_listen`"),
        (GOOD.replace("system.key", "no.key"), "`auth.system_key`"),
        (GOOD.replace("engines.key", "no.key"), "`auth.engine_key`"),
        (GOOD.replace("engine_key = \"engines.key\"", ""), "missing field `engine_key`"),
        (GOOD.replace("engines.key", "system.key"), "it is the system key, which clients have"),
        (GOOD.replace("rank = 1", "rank = 0"), "listed twice"),
        (GOOD.replace("rank = 1", "rank = 5"), "`rank` = \"1\""),
        (GOOD.replace("fabric_port = 10100", "fabric_port = 65535"), "`fabric_port`"),
        (GOOD.replace("log = ", "colour = "), "unknown field `colour`"),
        (GOOD.replace("[tls]", "[tsl]"), "unknown field `tsl`"),
        (GOOD.replace("[tls]", "[membership]\nperiod_ms = 5\n[tls]"), "`membership.period_ms` = \"5\""),
        (
            GOOD.replace("[tls]", "[membership]\nsuspicion_min_ms = 10\n[tls]"),
            "`membership.suspicion_min_ms` = \"10\" is not valid: give 1000 to",
        ),
        (GOOD.replace("targets = 2", "targets = \"two\""), "targets"),
    ];
    for (text, expected) in cases {
        let error = load(&text, ranked()).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let error = load(GOOD, Flags::default()).expect_err("no rank");
    assert!(error.contains("`rank` is not set") && error.contains("WEIR_RANK"), "{error}");
}

#[test]
fn what_is_no_configuration_is_not_shown_as_it_is() {
    let long = "x".repeat(100_000);
    for (text, said) in [
        (format!("rank = 0\n\u{1b}[2J\u{7}{long}"), "line 2, column "),
        (format!("colour{long} = 1\n"), "line 1, column 1: unknown field `colourxxx"),
        (format!("rank = \"{long}\"\n"), "line 1, column 8: invalid type: string "),
        ("\"\\u001b[2J\" = 1".to_owned(), "line 1, column 1: unknown field `\\u{1b}[2J`"),
    ] {
        let error = load(&text, ranked()).expect_err(said);
        assert!(error.contains(said), "{error}");
        assert!(error.len() < 2000 && !error.contains(|c: char| c.is_control()), "{error:?}");
    }
    let many = (2..2000).map(|rank| {
        format!(
            "[[engines]]\nrank = {rank}\nhost = \"h\"\nfabric_port = 1\ntargets = 1\nmanagement = \"h:1\"\n"
        )
    });
    let unlisted =
        GOOD.split("[[engines]]").next().expect("a beginning").to_owned() + &many.collect::<String>();
    for (text, said) in [
        (format!("log_format = \"\\u001b[2J{long}\"\n{GOOD}"), "`log_format` = \"\\u{1b}[2Jxxx"),
        (format!("index_memory = \"{long}\"\n{GOOD}"), "…\" is not valid: give bytes"),
        (format!("devices = [\"/{long}\"]\n{GOOD}"), "`devices` = \"/xxx"),
        (unlisted, "`rank` = \"1\" is not valid: [[engines]] lists ranks 2, 3"),
    ] {
        let error = load(&text, ranked()).expect_err(said);
        assert!(error.contains(said), "{error}");
        assert!(error.len() < 2000 && !error.contains(|c: char| c.is_control()), "{error:?}");
    }
}

#[test]
fn times_of_the_membership_protocol_keep_their_proportions_unless_they_are_set() {
    let config = load(GOOD, ranked()).expect("a good file");
    assert_eq!(config.membership, SwimConfig::default());
    let table = "[membership]\nperiod_ms = 200\nsuspicion_min_ms = 5000\n[tls]";
    let config = load(&GOOD.replace("[tls]", table), ranked()).expect("a good file");
    let times = config.membership;
    assert_eq!((times.period.as_millis(), times.gossip.as_millis()), (200, 40));
    assert_eq!((times.suspicion_min.as_millis(), times.suspicion_max.as_millis()), (5000, 5000));
}

#[test]
fn blocks_of_virtual_networks_are_read_and_wrong_ones_name_the_key() {
    let keys = |text: &str| {
        let line = format!("fabric_auth_key = \"{text}\"\nlog = ");
        load(&GOOD.replace("log = ", &line), ranked()).map(|config| config.auth_keys)
    };
    let key = |vni| AuthKey { service: 5, vni };
    assert_eq!(keys("5:100:102"), Ok(vec![key(100), key(101), key(102)]));
    assert_eq!(keys("none"), Ok(Vec::new()));
    assert_eq!(load(GOOD, ranked()).expect("a good file").auth_keys, Vec::new());
    let error = keys("5:100:7").expect_err("an empty block");
    assert!(error.contains("`fabric_auth_key` = \"5:100:7\"") && error.contains("block"), "{error}");
}

#[test]
fn the_nic_is_the_one_that_is_named_and_else_the_providers_choice() {
    let device = |text: &str| load(&GOOD.replace("log = ", text), ranked()).expect("a good file").device;
    assert_eq!(device("log = "), None);
    assert_eq!(device("fabric_device = \"lo\"\nlog = "), Some("lo".to_owned()));
}

#[test]
fn an_engine_alone_needs_no_list() {
    let alone = GOOD.split("[[engines]]").next().expect("the first part");
    let flags = Flags { rank: Some(0), host: Some("127.0.0.1".to_owned()), ..Flags::default() };
    let config = load(alone, flags).expect("a good file");
    assert_eq!(config.listen, "127.0.0.1");
    assert_eq!(config.engines.engines[0].management, "127.0.0.1:10001");
}

#[test]
fn probes_have_providers_and_ports_of_their_own() {
    let probes = |probes: &[&str]| Flags {
        probes: probes.iter().map(|probe| (*probe).to_owned()).collect(),
        ..ranked()
    };
    let config = load(GOOD, probes(&["mercury/ofi+tcp:10200", "shm:10201"])).expect("good probes");
    let listed: Vec<_> = config.probes.iter().map(|probe| (probe.provider.as_str(), probe.port)).collect();
    assert_eq!(listed, [("mercury/ofi+tcp", 10200), ("shm", 10201)]);
    for (bad, words) in [
        (&["shm"][..], "give a provider and a port"),
        (&["shm:0"], "give a provider and a port"),
        (&["shm:70000"], "give a provider and a port"),
        (&["udp:10200"], "one of Mercury's"),
        (&["tcp:10200"], "measured by it without a probe"),
        (&["shm:10200", "shm:10201"], "listed twice"),
        (&["shm:10101"], "a target's or another probe's"),
        (&["shm:10200", "verbs:10200"], "a target's or another probe's"),
    ] {
        let refused = load(GOOD, probes(bad)).expect_err("impossible");
        assert!(refused.contains("`probes`") && refused.contains(words), "{refused}");
    }
}
