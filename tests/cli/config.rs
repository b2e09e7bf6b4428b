//! The files that are shipped: each is read and planned, and a slip in one is told.

use std::path::{Path, PathBuf};

use crate::common::{Folder, read};
use crate::halostream;

fn shipped() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut list = Vec::new();
    for folder in ["config", "examples"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder").flatten().map(|e| e.path());
        let is_job = |p: &PathBuf| !std::fs::read_to_string(p).expect("text").contains("[service]");
        list.extend(entries.filter(|p| p.extension().is_some_and(|e| e == "toml")).filter(is_job));
    }
    list.sort();
    for name in ["gaussian", "kmeans", "ks_test", "rechunk", "seismic", "stack_sum", "sum", "svd", "tiff", "tv"] {
        assert!(list.contains(&root.join(format!("config/{name}.toml"))), "config/{name}.toml is not shipped");
    }
    list
}

#[test]
fn each_is_checked_and_planned() {
    let folder = Folder::new("cli-config");
    for file in shipped() {
        let text = std::fs::read_to_string(&file).expect("a file");
        let file = file.to_str().expect("a path in UTF-8");
        // `[output]`, or each `[outputs.NAME]`.
        let named = text.lines().filter_map(|line| Some(line.strip_prefix("[outputs.")?.split_once(']')?.0));
        let mut outputs: Vec<(String, &str)> = named.map(|name| (format!("outputs.{name}"), name)).collect();
        if outputs.is_empty() {
            outputs.push(("output".to_owned(), "out"));
        }
        let set = |(key, name): &(String, &str)| {
            ["--set".to_owned(), format!("{key}.path={}", folder.path(&format!("{name}.zarr")).display())]
        };
        let sets: Vec<String> = outputs.iter().flat_map(set).collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        halostream(&folder, &["check", file]).done();
        let plan = halostream(&folder, &[&["plan", file], &sets[..]].concat()).done().out;
        for (_, name) in &outputs {
            assert!(plan.contains(&format!("write      FOLDER/{name}.zarr")), "{file}: {plan}");
        }
        let plan = halostream(&folder, &[&["plan", file, "--json"], &sets[..]].concat()).done().out;
        let plan: serde_json::Value = serde_json::from_str(&plan).expect("one JSON object");
        for key in ["smallest_memory_bytes", "predicted_peak_bytes", "frontier_bytes"] {
            assert!(plan[key].as_u64().is_some_and(|n| n > 0), "{file}: {key} in {plan}");
        }
        assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 0, "{file}: a plan wrote something");
    }
}

#[test]
fn wrongkey() {
    let folder = Folder::new("cli-wrongkey");
    for file in shipped() {
        let text = std::fs::read_to_string(&file).expect("a file");
        for table in ["[input]", "[[step]]", "[output]", "[engine]"] {
            let Some(line) = text.lines().position(|l| l.starts_with(table)) else { continue };
            let mut lines: Vec<&str> = text.lines().collect();
            lines.insert(line + 1, "wrongkey = 1");
            std::fs::write(folder.path("job.toml"), lines.join("\n")).expect("a file");
            let ended = halostream(&folder, &["check", "job.toml"]);
            let key = format!(
                "line {}: {}.wrongkey: unknown key",
                line + 2,
                table.replace("[[step]]", "step[0]").trim_matches(['[', ']'])
            );
            let key = key.replace("step[0.", "step[0].");
            assert!(ended.code == 2 && ended.err.contains(&key), "{}: no {key:?} in {}", file.display(), ended.err);
        }
    }
}

/// The defaults that `ks_test.toml` shows as comments are the defaults: written out, they change nothing.
#[test]
fn shown_defaults_are_the_defaults() {
    let folder = Folder::new("cli-defaults");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/ks_test.toml")).expect("a file");
    let text = text.replace("[400, 360, 17]", "[40, 36, 5]").replace("128", "16").replace("../out/", "");
    // Those lines have no default to write out.
    let examples =
        ["array", "select", "stack", "concat", "from", "points", "shards", "memory", "scratch", "scratch_limit", "device_memory"];
    let shown: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) => match rest.split_once(" = ") {
                Some((key, _)) if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !examples.contains(&key) => {
                    rest.to_owned()
                }
                _ => line.to_owned(),
            },
            None => line.to_owned(),
        })
        .collect();
    let shown = shown.join("\n");
    for key in [
        "dtype",
        "seed",
        "missing",
        "decode_cf",
        "name",
        "inputs",
        "boundary",
        "chunks",
        "codec",
        "if_exists",
        "workers",
        "block",
        "park",
    ] {
        assert!(shown.lines().any(|l| l.starts_with(&format!("{key} = "))), "{key} is not shown");
    }
    for (name, text) in [("short", &text), ("shown", &shown)] {
        std::fs::write(folder.path("job.toml"), text).expect("a file");
        halostream(&folder, &["run", "job.toml", "--set", &format!("output.path={name}.zarr")]).done();
    }
    for array in ["dist", "p"] {
        assert_eq!(read(&folder.path("short.zarr"), Some(array)), read(&folder.path("shown.zarr"), Some(array)));
    }
    let layout = |name: &str| {
        let shown = halostream(&folder, &["inspect", name]).done().out;
        shown.lines().filter(|l| l.contains("chunks  ") || l.contains("codecs  ")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(layout("short.zarr"), layout("shown.zarr"));
}
