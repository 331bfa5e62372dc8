//! The archive as others read it: unpacked by the system's tar, checked against the rules of the OCI image specification.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_image::{Image, Written};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

fn tar(arguments: &[&str], folder: &Path) -> String {
    let output = Command::new("tar").args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "tar {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// An unpacked layout.
struct Layout(PathBuf);

impl Layout {
    fn unpack(archive: &Path) -> Self {
        let folder = archive.with_extension("unpacked");
        fs::create_dir(&folder).unwrap();
        tar(&["-xf", archive.to_str().unwrap()], &folder);
        Self(folder)
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.0.join(name)).unwrap()).unwrap()
    }

    /// The blob that a descriptor names, which must be what the descriptor says.
    fn blob(&self, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().unwrap();
        let content = fs::read(self.0.join("blobs").join(digest.replace(':', "/"))).unwrap();
        assert_eq!(sha256(&content), digest);
        assert_eq!(json!(content.len()), descriptor["size"]);
        content
    }

    fn manifest(&self) -> (Value, Value) {
        assert_eq!(self.json("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }));
        let index = self.json("index.json");
        let manifest: Value = serde_json::from_slice(&self.blob(&index["manifests"][0])).unwrap();
        let config = serde_json::from_slice(&self.blob(&manifest["config"])).unwrap();
        (manifest, config)
    }

    /// All layers over one another, as a container sees them.
    fn root(&self) -> PathBuf {
        let root = self.0.join("root");
        fs::create_dir(&root).unwrap();
        let (manifest, config) = self.manifest();
        let layers = manifest["layers"].as_array().unwrap();
        let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
        assert_eq!(layers.len(), diff_ids.len());
        for (descriptor, diff_id) in layers.iter().zip(diff_ids) {
            let mut plain = self.blob(descriptor);
            let media_type = descriptor["mediaType"].as_str().unwrap();
            if media_type == "application/vnd.oci.image.layer.v1.tar+gzip" {
                let mut out = Vec::new();
                std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(plain.as_slice()), &mut out)
                    .unwrap();
                plain = out;
            } else {
                assert_eq!(media_type, "application/vnd.oci.image.layer.v1.tar");
            }
            assert_eq!(json!(sha256(&plain)), *diff_id);
            let file = self.0.join("layer.tar");
            fs::write(&file, plain).unwrap();
            tar(&["-xpf", file.to_str().unwrap(), "--no-same-owner"], &root);
        }
        root
    }
}

fn example(folder: &Path, name: &str) -> (PathBuf, Written) {
    let script = folder.join("script.sh");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let archive = folder.join(name);
    let written = Image::new("gantry:dev")
        .bytes("/etc/nested/conf", "a=1\n", 0o640)
        .directory("/tmp", 0o1777)
        .symlink("/etc/link", "nested/conf")
        .layer()
        .file(&script, "/usr/bin/script")
        .entrypoint(["/usr/bin/script"])
        .command(["agent"])
        .env("PATH", "/usr/bin")
        .user("65532:65532")
        .working_dir("/")
        .label("org.opencontainers.image.title", "Gantry")
        .architecture("amd64")
        .write(&archive)
        .unwrap();
    (archive, written)
}

#[test]
fn the_layout_is_whole_and_says_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, written) = example(folder.path(), "a.tar");
    let layout = Layout::unpack(&archive);
    let descriptor = &layout.json("index.json")["manifests"][0];
    assert_eq!(descriptor["digest"], json!(written.digest));
    assert_eq!(descriptor["platform"], json!({ "architecture": "amd64", "os": "linux" }));
    assert_eq!(descriptor["annotations"]["io.containerd.image.name"], "docker.io/library/gantry:dev");
    let (manifest, config) = layout.manifest();
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
    assert_eq!(
        config["config"],
        json!({
            "Entrypoint": ["/usr/bin/script"], "Cmd": ["agent"], "Env": ["PATH=/usr/bin"], "User": "65532:65532",
            "WorkingDir": "/", "Labels": { "org.opencontainers.image.title": "Gantry" },
        })
    );
    let docker = &layout.json("manifest.json")[0];
    assert_eq!(docker["RepoTags"], json!(["docker.io/library/gantry:dev"]));
    assert!(layout.0.join(docker["Config"].as_str().unwrap()).is_file());
    for (path, layer) in
        docker["Layers"].as_array().unwrap().iter().zip(manifest["layers"].as_array().unwrap())
    {
        let digest = layer["digest"].as_str().unwrap().trim_start_matches("sha256:");
        assert_eq!(*path, json!(format!("blobs/sha256/{digest}")));
    }
    let root = layout.root();
    assert_eq!(fs::read_to_string(root.join("etc/link")).unwrap(), "a=1\n");
    assert_eq!(written.files.keys().collect::<Vec<_>>(), ["/etc/nested/conf", "/usr/bin/script"]);
}

#[test]
fn entries_belong_to_root_in_1970_and_stand_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("a.tar");
    Image::new("x")
        .bytes("/b", "", 0o644)
        .bytes("/a/z", "12", 0o755)
        .symlink("/a/l", "z")
        .directory("/tmp", 0o1777)
        .uncompressed()
        .write(&archive)
        .unwrap();
    let layout = Layout::unpack(&archive);
    let (manifest, _) = layout.manifest();
    let layer = folder.path().join("layer.tar");
    fs::write(&layer, layout.blob(&manifest["layers"][0])).unwrap();
    let list = Command::new("tar")
        .args(["-tvf", layer.to_str().unwrap(), "--numeric-owner"])
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let lines: Vec<String> =
        list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "drwxr-xr-x 0/0 0 1970-01-01 00:00 a/",
            "lrwxrwxrwx 0/0 0 1970-01-01 00:00 a/l -> z",
            "-rwxr-xr-x 0/0 2 1970-01-01 00:00 a/z",
            "-rw-r--r-- 0/0 0 1970-01-01 00:00 b",
            "drwxrwxrwt 0/0 0 1970-01-01 00:00 tmp/",
        ]
    );
}

#[test]
fn the_same_input_is_the_same_archive() {
    let folder = tempfile::tempdir().unwrap();
    let (first, one) = example(folder.path(), "a.tar");
    // The file is written anew in between, and so has another time.
    let (second, two) = example(folder.path(), "b.tar");
    assert_eq!(one, two);
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap(), "the archives differ");
}

#[test]
fn a_program_comes_with_everything_that_it_is_linked_against() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("a.tar");
    let program = std::env::current_exe().unwrap();
    let written = Image::new("x")
        .program(&program, "/usr/bin/program")
        .library("libdl.so.2")
        .uncompressed()
        .write(&archive)
        .unwrap();
    assert!(written.files.keys().any(|path| path.ends_with("/libdl.so.2")), "{written:?}");
    let root = Layout::unpack(&archive).root();
    // The loader of the image resolves the program with the libraries of the image: none may come from elsewhere.
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    let loader = written.files.keys().find(|path| path.contains("/ld-linux")).expect("a loader");
    let mut folders: Vec<String> = written
        .files
        .keys()
        .filter(|path| path.contains(".so"))
        .map(|path| inside(path).parent().unwrap().display().to_string())
        .collect();
    folders.dedup();
    let output = Command::new(inside(loader))
        .args(["--inhibit-cache", "--library-path", &folders.join(":"), "--list"])
        .arg(inside("/usr/bin/program"))
        .output()
        .unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && list.contains("libc.so"), "{list}");
    for line in list.lines().filter(|line| line.contains("=>")) {
        let path = line.split("=> ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        // The loader is named by the path that the program has for it.
        assert!(path.starts_with(root.to_str().unwrap()) || path == loader, "not of the image: {line}");
    }
}

#[test]
fn a_refusal_names_what_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let text = at("text");
    fs::write(&text, "no program").unwrap();
    let missing = at("missing");
    let new = || Image::new("x");
    for (image, expected) in [
        (new().bytes("a", "", 0o644), "path \"a\" in the image: must begin with '/'".to_owned()),
        (new().bytes("/a/../b", "", 0o644), "path \"/a/../b\" in the image: must not have empty parts, '.' or '..'".to_owned()),
        (new().bytes("/a/", "", 0o644), "path \"/a/\" in the image: must not have empty parts, '.' or '..'".to_owned()),
        (new().bytes("/a\0", "", 0o644), "path \"/a\\0\" in the image: must not have a zero byte".to_owned()),
        (new().bytes("/a", "1", 0o644).bytes("/a", "2", 0o644), "path \"/a\" in the image: given twice, with different content".to_owned()),
        (new().bytes("/a", "1", 0o644).bytes("/a/b", "2", 0o644), "path \"/a/b\" in the image: a file or link cannot have something below it".to_owned()),
        (new().symlink("/a", ""), "path \"/a\" in the image: the target of a link must have 1 to 100 bytes".to_owned()),
        (new().file(&missing, "/a"), format!("read {}", missing.display())),
        (new().program(&text, "/a"), format!("read {} as a program", text.display())),
        (new().library("libno.so.7").architecture("amd64"), "the image: needs the library libno.so.7, which is in none of".to_owned()),
        (Image::new("X"), "image reference \"X\": each part of the name must be lower-case letters and digits, separated by '.', '_' or '-'".to_owned()),
    ] {
        let error = image.write(&at("a.tar")).unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
        assert!(!at("a.tar").exists());
    }
    assert!(new().write(&at("no/such/folder.tar")).unwrap_err().to_string().starts_with("write "));
}
