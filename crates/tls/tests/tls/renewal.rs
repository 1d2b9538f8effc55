//! Files that change while they are used.

use crate::authority::{Authority, Directory, dns};
use crate::handshakes::meet;
use std::sync::mpsc;
use std::time::Duration;
use tidegate_tls::{Client, ClientOptions, News, Offer, Roots, Server, ServerOptions};
use tokio::io::AsyncWriteExt;

fn files(directory: &Directory, authority: &Authority) -> ServerOptions {
    let (certificate, key) = authority.sign(dns(&["localhost"]));
    ServerOptions::new(directory.write("cert.pem", certificate), directory.write("key.pem", key))
}

#[tokio::test]
async fn new_files_count_for_new_connections_and_old_ones_stay() {
    let (directory, before, after) = (Directory::new(), Authority::new(), Authority::new());
    let server = Server::new(files(&directory, &before)).unwrap();
    let (old, _) = meet(&server, &before.client(None), Offer::Either).await;
    let mut old = old.unwrap();
    assert!(!server.reload().unwrap());
    assert!(server.look().is_none());

    files(&directory, &after);
    assert!(matches!(server.look(), Some(News::Renewed)));
    assert!(meet(&server, &after.client(None), Offer::Either).await.0.is_ok());
    assert!(meet(&server, &before.client(None), Offer::Either).await.0.is_err());
    old.write_all(b"still there").await.unwrap();
    old.flush().await.unwrap();
}

#[tokio::test]
async fn wrong_files_change_nothing_and_are_told_of_once() {
    let (directory, authority) = (Directory::new(), Authority::new());
    let server = Server::new(files(&directory, &authority)).unwrap();
    // Between two renames they do not fit, which is nobody's mistake.
    let (certificate, key) = authority.sign(dns(&["localhost"]));
    directory.write("cert.pem", certificate);
    assert!(server.look().is_none());
    directory.write("key.pem", key);
    assert!(matches!(server.look(), Some(News::Renewed)));

    std::fs::remove_file(directory.path("key.pem")).unwrap();
    assert!(server.look().is_none());
    let Some(News::Refused(error)) = server.look() else { panic!("nothing was told") };
    assert!(error.place.ends_with("key.pem"), "{error}");
    assert!(server.look().is_none());
    // Something else is wrong.
    directory.write("key.pem", "nonsense");
    assert!(server.look().is_none());
    assert!(matches!(server.look(), Some(News::Refused(_))));
    assert!(server.reload().is_err());
    assert!(meet(&server, &authority.client(None), Offer::Either).await.0.is_ok());
    files(&directory, &authority);
    assert!(matches!(server.look(), Some(News::Renewed)));
}

#[tokio::test]
async fn somebody_looks_for_as_long_as_there_is_a_server() {
    let (directory, before, after) = (Directory::new(), Authority::new(), Authority::new());
    let server = Server::new(files(&directory, &before)).unwrap();
    let (tell, told) = mpsc::channel();
    let say = move |news| tell.send(format!("{news:?}")).unwrap();
    server.watch(Duration::from_millis(1), say).unwrap();
    files(&directory, &after);
    // Between its two renames it may have looked twice.
    while told.recv().unwrap() != "Renewed" {}
    drop(server);
    // The thread ends, and with it what it would have told by.
    assert!(told.recv().is_err());
}

#[tokio::test]
async fn clients_follow_their_roots_too() {
    let (directory, before, after) = (Directory::new(), Authority::new(), Authority::new());
    let mut options = ClientOptions::default();
    options.roots = Roots::Given(directory.write("ca.pem", &before.root).into());
    let client = Client::new(options).unwrap();
    assert!(meet(&before.server(), &client, Offer::Either).await.0.is_ok());
    assert!(meet(&after.server(), &client, Offer::Either).await.0.is_err());
    directory.write("ca.pem", &after.root);
    assert!(client.reload().unwrap());
    assert!(meet(&after.server(), &client, Offer::Either).await.0.is_ok());
}
