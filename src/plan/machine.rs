//! What this machine offers: cores and memory, as the control group allows.

/// What the plan may count on; tests make their own.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub cores: usize,
    pub memory_available: u64,
}

impl Machine {
    pub fn detect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let free = meminfo("MemAvailable:").unwrap_or(4 << 30);
        let bounded = cgroup_room().map_or(free, |room| room.min(free));
        Self { cores, memory_available: bounded }
    }
}

fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What the control group (v2, else v1) still allows.
fn cgroup_room() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |path: String| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut least: Option<u64> = None;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // A parent's limit binds too.
        let mut at = std::path::Path::new(path);
        loop {
            let folder = format!("{root}{}", at.display());
            if let Some(limit) = read(format!("{folder}/{limit}")).filter(|l| *l < 1 << 60) {
                let room = limit.saturating_sub(read(format!("{folder}/{used}")).unwrap_or(0));
                least = Some(least.map_or(room, |l| l.min(room)));
            }
            match at.parent() {
                Some(parent) => at = parent,
                None => break,
            }
        }
    }
    least
}
