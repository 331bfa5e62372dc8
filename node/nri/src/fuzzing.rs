//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::sync::Mutex;

use prost::Message as _;

use crate::frame::Demultiplexer;
use crate::ttrpc::Assembler;
use crate::{Container, ContainerAdjustment, Events, KeyValue, Plugin, PodSandbox, Session};

/// Sizes of the pieces in which bytes are handed over: all at once, one by one, and something between.
const SIZES: [usize; 3] = [usize::MAX, 1, 7];

/// However the bytes of a socket are split, the same bytes come out for each connection, or the same error.
pub fn frames(data: &[u8]) {
    let read = |size: usize| {
        let mut demultiplexer = Demultiplexer::default();
        let mut bytes_of = Vec::<(u32, u8)>::new();
        for mut piece in data.chunks(size) {
            loop {
                match demultiplexer.next(&mut piece) {
                    Ok(Some((connection, bytes))) => {
                        assert!(connection != 0 && !bytes.is_empty());
                        bytes_of.extend(bytes.iter().map(|byte| (connection, *byte)));
                    }
                    Ok(None) => break,
                    Err(error) => return (bytes_of, error.to_string()),
                }
            }
        }
        (bytes_of, String::new())
    };
    let whole = read(SIZES[0]);
    assert!(SIZES.iter().all(|size| read(*size) == whole));
}

/// However a stream is split, the same messages come out, or the same error; what they hold is what was there.
pub fn messages(data: &[u8]) {
    let read = |size: usize| {
        let mut assembler = Assembler::default();
        let mut messages = Vec::new();
        for piece in data.chunks(size) {
            assembler.push(piece);
            loop {
                match assembler.next() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, error.to_string()),
                }
            }
        }
        (messages, String::new())
    };
    let whole = read(SIZES[0]);
    assert!(SIZES.iter().all(|size| read(*size) == whole));
    assert!(whole.0.iter().map(|message| message.payload.len() + 10).sum::<usize>() <= data.len());
}

/// Writes down what it is asked.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn write(&self, text: String) {
        self.0.lock().expect("invariant: nobody panics with the lock").push(text);
    }
}

impl Plugin for Recorder {
    fn events(&self) -> Events {
        Events::of(&[crate::Event::CreateContainer])
    }

    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        self.write(format!("synchronize {pods:?} {containers:?}"));
    }

    fn create_container(&self, pod: PodSandbox, container: Container) -> Result<ContainerAdjustment, String> {
        self.write(format!("create {pod:?} {container:?}"));
        if container.name.is_empty() {
            return Err("no name".to_owned());
        }
        let env = vec![KeyValue { key: container.name, value: pod.uid }];
        Ok(ContainerAdjustment { env, ..ContainerAdjustment::default() })
    }

    fn stop_pod(&self, pod: PodSandbox) {
        self.write(format!("stop {pod:?}"));
    }
}

/// However the bytes of a runtime are split, the plugin is asked the same and the same is sent; what is sent are frames. The
/// input is also taken for the payload of a method, which few random frames would reach.
pub fn session(data: &[u8]) {
    let exchange = |data: &[u8], size: usize| {
        let plugin = Recorder::default();
        let (mut session, _) = Session::start("fuzz", "10");
        let mut out = Vec::new();
        let end = data.chunks(size).try_for_each(|piece| session.receive(&plugin, piece, &mut out));
        let end = end.map_err(|error| error.to_string());
        let asked = plugin.0.into_inner().expect("invariant: nobody panics with the lock");
        (asked, out, end, session.connected().cloned())
    };
    let method = ["Configure", "Synchronize", "CreateContainer", "StateChange", "StopPodSandbox"]
        [data.first().map_or(0, |byte| usize::from(*byte) % 5)];
    let request = gantry_proto::ttrpc::Request {
        service: gantry_proto::nri::PLUGIN_SERVICE.to_owned(),
        method: method.to_owned(),
        payload: data.get(1..).unwrap_or_default().to_vec(),
        ..Default::default()
    };
    let mut framed = Vec::new();
    crate::ttrpc::write(&mut framed, 1, 1, crate::ttrpc::REQUEST, &request.encode_to_vec());
    for bytes in [data, framed.as_slice()] {
        let whole = exchange(bytes, SIZES[0]);
        assert!(SIZES.iter().all(|size| exchange(bytes, *size) == whole));
        frames(&whole.1);
    }
    assert!(!exchange(&framed, SIZES[0]).1.is_empty(), "every request is answered");
}
