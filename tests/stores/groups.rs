//! Groups: found by listing where a store can, by consolidated metadata or by name elsewhere.

use serde_json::{Value, json};

use super::common::{Folder, Random, write};
use super::server::Server;
use super::*;

/// A group of two arrays; what v3 consolidates is written into its document when wanted.
fn group(folder: &Folder, is_consolidated: bool) -> Array {
    let root = bucket(folder).join("g.zarr");
    let array = values(&mut Random(5), &[20, 12]);
    write(&root.join("in/a"), &array, &[7, 5], None, CodecName::Zstd);
    write(&root.join("b"), &values(&mut Random(6), &[4]), &[2], None, CodecName::Zstd);
    let read = |path: &str| -> Value {
        serde_json::from_slice(&std::fs::read(root.join(path).join("zarr.json")).expect("metadata")).expect("JSON")
    };
    let plain = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
    let mut document = plain.clone();
    if is_consolidated {
        let metadata = json!({"in": plain, "in/a": read("in/a"), "b": read("b")});
        document["consolidated_metadata"] = json!({"kind": "inline", "must_understand": false, "metadata": metadata});
    }
    std::fs::write(root.join("zarr.json"), document.to_string()).expect("metadata");
    std::fs::write(root.join("in/zarr.json"), plain.to_string()).expect("metadata");
    array
}

#[test]
fn arrays_of_groups_by_name() {
    let folder = Folder::new("stores-group");
    let array = group(&folder, false);
    let server = Server::new(&served(&folder));
    for (url, env) in [(server.url("bucket/g.zarr"), Vec::new()), ("s3://bucket/g.zarr".to_owned(), s3(&server))] {
        copy_job(&folder, &url, "array = \"in/a\"");
        halostream(&folder, &RUN, &borrowed(&env)).done();
        let is_group = !folder.path("out.zarr/c").exists();
        let name = is_group.then_some("in/a");
        assert_eq!(common::read(&folder.path("out.zarr"), name), array, "{url}");
        // Only where the store can be listed it is known that the group holds more.
        assert_eq!(is_group, url.starts_with("s3"), "{url}");
        std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    }
}

#[test]
fn groups_are_listed_or_consolidated() {
    let folder = Folder::new("stores-listed");
    group(&folder, false);
    let server = Server::new(&served(&folder));
    copy_job(&folder, "s3://bucket/g.zarr", "");
    halostream(&folder, &RUN, &borrowed(&s3(&server))).fails(2, &["several arrays", "in/a", "b"]);
    let url = server.url("bucket/g.zarr");
    copy_job(&folder, &url, "");
    halostream(&folder, &RUN, &[]).fails(2, &["can't be listed", "array = \"NAME\"", "consolidated"]);
    group(&folder, true);
    halostream(&folder, &RUN, &[]).fails(2, &["several arrays", "in/a", "b"]);
    let shown = halostream(&folder, &["inspect", &url], &[]).done();
    assert!(shown.out.contains("in/a  uint16 [20, 12]") && shown.out.contains("b  uint16 [4]"), "{}", shown.out);
    let shown = halostream(&folder, &["inspect", "s3://bucket/g.zarr"], &borrowed(&s3(&server))).done();
    assert!(shown.out.contains("in 9 objects"), "{}", shown.out);
}

#[test]
fn arrays_of_v2() {
    let folder = Folder::new("stores-v2");
    let array = values(&mut Random(8), &[9, 14]);
    write(&folder.path("local.zarr"), &array, &[4, 5], None, CodecName::Zstd);
    let to = bucket(&folder).join("v2.zarr");
    let text =
        format!("[input]\npath = \"local.zarr\"\n[output]\npath = \"{}\"\nzarr_format = 2\nchunks = [4, 5]\n", to.display());
    std::fs::write(folder.path("job.toml"), text).expect("a job file");
    halostream(&folder, &RUN, &[]).done();
    let server = Server::new(&served(&folder));
    for (url, env) in [(server.url("bucket/v2.zarr"), Vec::new()), ("gs://bucket/v2.zarr".to_owned(), gs(&server))] {
        copy_job(&folder, &url, "");
        halostream(&folder, &RUN, &borrowed(&env)).done();
        assert_eq!(output(&folder), array, "{url}");
        std::fs::remove_dir_all(folder.path("out.zarr")).expect("an output");
    }
}
