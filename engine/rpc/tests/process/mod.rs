//! Programs that start themselves again in other roles, and play scenarios with those processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A process of this program; killed when dropped.
pub struct Process(Child);

impl Process {
    /// Starts this program in a role, and waits until it says that it is ready.
    pub fn start(role: &str, provider: &str, port: u16) -> Self {
        let program = std::env::current_exe().expect("own path");
        let mut child = Command::new(program)
            .args([role, provider, &port.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), "ready", "the {role} process said something else");
        Self(child)
    }

    /// Its process id.
    pub fn id(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).expect("it can be signalled");
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }

    /// Waits until it has ended by itself.
    #[allow(dead_code, reason = "each test program uses a part of it")]
    pub fn wait(mut self) {
        assert!(self.0.wait().expect("reaped").success(), "a process of the test failed");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tells whoever started this process that it can be used.
pub fn say_ready() {
    println!("ready");
    std::io::stdout().flush().expect("the parent listens");
}

/// A name and what to do with a provider.
pub type Scenario = (&'static str, fn(&str));

/// Plays each scenario on each provider that is tested, or those that the program's first argument is part of the label of.
pub fn play(scenarios: &[Scenario]) {
    let filter = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    for provider in weir_fabric::tested() {
        for (name, scenario) in scenarios {
            let label = format!("{provider}: {name}");
            if filter.as_ref().is_some_and(|filter| !label.contains(filter.as_str())) {
                continue;
            }
            print!("{label} ...");
            std::io::stdout().flush().expect("a terminal");
            scenario(provider);
            println!(" ok");
        }
    }
}
