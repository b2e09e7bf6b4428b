//! The service files that are shipped: each is right, and a slip in one is told.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{self, Folder};
use crate::kit::*;

fn shipped() -> Vec<PathBuf> {
    ["service", "demo"].map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/{name}.toml"))).into()
}

/// A copy of the shipped files, in a folder where they may write.
fn copied() -> Folder {
    let folder = Folder::new("service-shipped");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    fs::create_dir_all(folder.path("config/jobs")).expect("a folder");
    for name in ["service.toml", "demo.toml", "jobs/service.toml", "jobs/demo.toml"] {
        fs::copy(root.join(name), folder.path("config").join(name)).expect("a copy");
    }
    folder
}

#[test]
fn each_is_right_and_a_wrong_key_is_named() {
    let folder = copied();
    for file in shipped() {
        let (code, out, err) = halostream(&folder, &["check", file.to_str().expect("UTF-8")]);
        assert!(code == 0 && out.ends_with(": ok\n"), "{err}");
        let text = fs::read_to_string(&file).expect("a file");
        for (table, key) in
            [("[service]", "service.wrongkey"), ("[[watch]]", "watch[0].wrongkey"), ("[[sample]]", "sample[0].wrongkey")]
        {
            let Some(line) = text.lines().position(|l| l.starts_with(table)) else { continue };
            let mut lines: Vec<&str> = text.lines().collect();
            lines.insert(line + 1, "wrongkey = 1");
            fs::write(folder.path("config/x.toml"), lines.join("\n")).expect("a file");
            let (code, _, err) = halostream(&folder, &["check", "config/x.toml"]);
            assert!(code == 2 && err.contains(&format!("line {}: {key}: unknown key", line + 2)), "{err}");
        }
    }
}

/// The defaults that `service.toml` shows as comments are known keys with values of their type.
#[test]
fn shown_defaults_are_accepted() {
    let folder = copied();
    let text = fs::read_to_string(folder.path("config/service.toml")).expect("a file");
    let shown = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let (key, _) = rest.split_once(" = ")?;
        let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_key.then(|| rest.to_owned())
    };
    let count = text.lines().filter_map(shown).count();
    let written: Vec<String> = text.lines().map(|l| shown(l).unwrap_or_else(|| l.to_owned())).collect();
    fs::write(folder.path("config/x.toml"), written.join("\n")).expect("a file");
    let (code, out, err) = halostream(&folder, &["check", "config/x.toml"]);
    assert!(code == 0 && count >= 15, "{count} keys: {out}{err}");
}

/// The words of docs/operations.md know every metric and event.
#[test]
fn everything_is_explained() {
    let docs = include_str!("../../docs/operations.md");
    let between =
        |text: &'static str, from: &str, to: &str| text.split(from).nth(1).and_then(|t| t.split(to).next()).expect("there");
    let words = |text: &'static str, before: &'static str| -> Vec<&str> {
        text.split(before).skip(1).filter_map(|t| t.split('"').next()).collect()
    };
    let events = words(between(include_str!("../../src/service/events.rs"), "pub fn name(", "fn record("), "=> \"");
    let metrics = words(between(include_str!("../../src/service/metrics.rs"), "pub fn new(", "Ok(metrics)"), "opts(\"");
    assert!(events.len() > 20 && metrics.len() > 20);
    let unknown: Vec<String> = events
        .into_iter()
        .map(|event| format!("`{event}`"))
        .chain(metrics.into_iter().map(|metric| format!("`halostream_{metric}`")))
        .filter(|name| !docs.contains(name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "docs/operations.md says nothing of {unknown:?}");
}

/// The README's line: a folder that fills itself, worked off, and nothing to do the second time.
#[test]
fn the_demo() {
    let folder = copied();
    for done in ["done 3 in", "done 0 in"] {
        let (code, out, err) = halostream(&folder, &["serve", "config/demo.toml", "--once"]);
        assert!(code == 0 && out.starts_with(done), "{out}{err}");
    }
    for n in 0..3 {
        let dist = common::read(&folder.path(&format!("out/demo/results/scene-{n}.ks.zarr")), Some("dist"));
        assert_eq!(dist.shape[..2], [200, 180]);
    }
}

#[test]
fn problems_are_told_together() {
    let folder = set_up("problems", "", "");
    let text = "[service]\nlisten = \"everywhere\"\nmax_jobs = 0\n[[watch]]\nname = \"a b\"\ndirectory = \"in\"\npattern = \"../*.zarr\"\ncomplete = [\"setle:10s\"]\njob = \"no.toml\"\noutput = \"in/out.zarr\"\nafter = \"burn\"\n[[watch]]\nname = \"loop\"\ndirectory = \"in\"\npattern = \"*.zarr\"\ncomplete = [\"rename\"]\njob = \"job.toml\"\noutput = \"in/{stem}.out.zarr\"\n";
    fs::write(folder.path("service.toml"), text).expect("a file");
    let (code, _, err) = halostream(&folder, &["serve", "service.toml"]);
    assert_eq!(code, 2);
    for words in [
        "service.listen: \"everywhere\" is no address",
        "service.state: missing",
        "service.max_jobs: expected 1 to",
        "watch[0].name: \"a b\" is no name",
        "watch[0].pattern: \"../*.zarr\" has to lie below",
        "did you mean \"settle\"?",
        "watch[0].job: ",
        "watch[0].output: is the same for every input",
        "watch[0].after: \"burn\" is none of",
        "an output would be an input of \"loop\" again",
    ] {
        assert!(err.contains(words), "no {words:?} in\n{err}");
    }
    assert!(!folder.path("state").exists());
    // Nothing says when an input is whole: no default would be right.
    write_service(&folder, "", "");
    let (code, _, err) = halostream(&folder, &["check", "service.toml"]);
    assert!(code == 2 && err.contains("watch[0].complete: missing, and there is no default"), "{err}");
    fs::write(folder.path("job.toml"), "[input]\npath = 'a.zarr'\n[output]\npath = 'b.zarr'\nif_exists = 'overwrite'")
        .expect("a job");
    let (_, _, err) = halostream(&folder, &["check", "service.toml"]);
    for words in ["no input reads {input}", "no output has path = \"{output}\"", "if_exists"] {
        assert!(err.contains(words), "no {words:?} in\n{err}");
    }
}
