use super::*;
use std::fs;

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("halostream-config-service-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("job.toml"), "[input]\npath = '{input}'\n[output]\npath = '{output}'\n").unwrap();
    path
}

const WATCH: &str = "[[watch]]\nname = 'w'\ndirectory = 'in'\npattern = '*.zarr'\ncomplete = ['rename']\njob = 'job.toml'\noutput = 'out/{stem}.zarr'\n";

fn spec(at: &Path, text: &str) -> Result<ServiceSpec, String> {
    let env = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
    let read = parse(text, &at.join("service.toml"), at.to_str().unwrap(), &env);
    read.map_err(|p| p.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn defaults_and_paths() {
    let at = folder("defaults");
    let spec = spec(&at, &format!("[service]\nstate = '${{HOME}}/state'\n{WATCH}")).unwrap();
    assert_eq!(spec.state, Path::new("/home/me/state"));
    assert_eq!((spec.max_jobs, spec.listen.unwrap().to_string()), (1, "127.0.0.1:8787".to_owned()));
    let watch = &spec.watches[0];
    assert_eq!(watch.directory, at.join("in"));
    assert_eq!(watch.output_of("x/a b.zarr"), at.join("out/a b.zarr"));
    assert_eq!((watch.retries, watch.after.clone(), watch.on_change), (3, After::Keep, OnChange::Reprocess));
    assert_eq!(spec.files, [at.join("job.toml"), at.join("service.toml")]);
    let _ = fs::remove_dir_all(&at);
}

#[test]
fn patterns() {
    for (pattern, depth, yes, no) in [
        ("*.zarr", Some(1), &["a.zarr", "a\nb.zarr"][..], &["x/a.zarr", "a.zarr.part", ".a.zarr"][..]),
        ("*/*.zarr", Some(2), &["x/a.zarr"], &["a.zarr", "x/y/a.zarr", ".x/a.zarr"]),
        ("**/*.zarr", None, &["a.zarr", "x/y/a.zarr"], &["x/a.tif", ".x/a.zarr"]),
        ("run-[0-9]/*", Some(2), &["run-1/a"], &["run-x/a", "run-1"]),
    ] {
        let pattern = Pattern::new(pattern).unwrap();
        assert_eq!(pattern.depth, depth);
        assert!(yes.iter().all(|p| pattern.matches(p)), "{pattern:?}");
        assert!(!no.iter().any(|p| pattern.matches(p)), "{pattern:?}");
    }
    for bad in ["", "/a/*.zarr", "../*.zarr", "a/../b", "a[", "x/***"] {
        assert!(Pattern::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn policies_and_what_is_ignored() {
    let at = folder("policies");
    let text =
        WATCH.replace("['rename']", "['settle:1min', 'settle:10s', 'marker:{name}.done', 'manifest:{stem}.sha256', 'zarr']");
    let spec = spec(&at, &format!("[service]\nstate = 's'\n{text}ignore = ['old-*']\n")).unwrap();
    let watch = &spec.watches[0];
    assert_eq!(watch.settle(), Some(Duration::from_secs(60)));
    assert_eq!(watch.complete[2], Policy::Marker("{name}.done".to_owned()));
    let ignored = ["a.zarr.done", "a.sha256", ".hidden", "a.part", "a~", "old-1", "b.tmp"];
    assert!(ignored.iter().all(|n| watch.ignores(n, n)));
    assert!(!["a.zarr", "new-1", "done"].iter().any(|n| watch.ignores(n, n)));
    let _ = fs::remove_dir_all(&at);
}

#[test]
fn refused() {
    let at = folder("refused");
    for (from, to, why) in [
        ("['rename']", "['settle']", "\"settle\" needs a time"),
        ("['rename']", "['settle:ten']", "does not begin with a number"),
        ("['rename']", "['marker:../x']", "names no file"),
        ("['rename']", "['marker:{input}']", "{input} means nothing here"),
        ("['rename']", "[]", "nothing would say when an input is whole"),
        ("out/{stem}.zarr", "out/{stme}.zarr", "did you mean {stem}?"),
        ("out/{stem}.zarr", "out/{stem}.tif", "outputs end in .zarr"),
        ("out/{stem}.zarr", "https://out/{stem}.zarr", "web servers are only read"),
        ("out/{stem}.zarr", "in/{stem}.zarr", "would be an input of \"w\" again"),
        ("'in'", "'s/in'", "lies in the service's state folder"),
        ("[[watch]]", "[watch]", "write [[watch]] with two brackets"),
        ("pattern", "patern", "did you mean `pattern`?"),
    ] {
        let text = WATCH.replace(from, to);
        let error = spec(&at, &format!("[service]\nstate = 's'\n{text}")).err().unwrap_or_default();
        assert!(error.contains(why), "{to}: {error}");
    }
    let twice = spec(&at, &format!("[service]\nstate = 's'\n{WATCH}{WATCH}")).err().unwrap();
    assert!(twice.contains("names are unique"), "{twice}");
    let none = spec(&at, "").err().unwrap();
    assert!(none.contains("no [service]") && none.contains("no [[watch]]"), "{none}");
    let _ = fs::remove_dir_all(&at);
}
