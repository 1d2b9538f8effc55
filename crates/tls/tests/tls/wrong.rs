//! What is wrong is said with where, what, and what would be right.

use crate::authority::{Authority, Directory, dns};
use tidegate_tls::{
    Client, ClientOptions, Clients, Identity, InvalidTls, Pem, Roots, Server, ServerOptions,
};

fn server(certificate: impl Into<Pem>, key: impl Into<Pem>) -> Result<Server, InvalidTls> {
    Server::new(ServerOptions::new(certificate, key))
}

#[test]
fn files_that_cannot_be_used() {
    let (directory, authority) = (Directory::new(), Authority::new());
    let (certificate, key) = authority.sign(dns(&["localhost"]));
    let (_, other) = authority.sign(dns(&["localhost"]));
    let good = directory.write("cert.pem", &certificate);
    let good_key = directory.write("key.pem", &key);
    let write = |name: &str, text: &str| directory.write(name, text);
    let cut = &certificate[..certificate.len() - 30];
    let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
    let not_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (result, place, what) in [
        (server(directory.path("none"), good_key.clone()), "none", "No such file"),
        (server(write("empty", ""), good_key.clone()), "empty", "the certificates are not in it"),
        (server(good_key.clone(), good_key.clone()), "key.pem", "the certificates are not in it"),
        (server(write("cut", cut), good_key.clone()), "cut", "has no end"),
        (server(write("der", not_der), good_key.clone()), "der", "cannot be used"),
        (server(good.clone(), good.clone()), "cert.pem", "the key is not in it"),
        (server(good.clone(), write("locked", locked)), "locked", "encrypted by a password"),
        (server(good.clone(), write("other", &other)), "cert.pem", "not for this key"),
        (server(good.clone(), write("big", &"x".repeat(5 << 20))), "big", "5242880 bytes"),
    ] {
        let error = result.unwrap_err();
        assert!(error.place.ends_with(place), "{error}");
        assert!(error.what.contains(what), "{error}");
        assert!(error.to_string().contains("right: "), "{error}");
    }
}

#[test]
fn roots_and_identities_that_cannot_be_used() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(dns(&["localhost"]));
    let mut options = authority.localhost();
    options.clients = Clients::Required(Pem::text("nothing"));
    let error = Server::new(options).unwrap_err();
    assert_eq!(
        (error.place.as_str(), error.what.as_str()),
        ("the roots", "the roots are not in it")
    );

    let mut options = ClientOptions::default();
    options.roots = Roots::Given(Pem::text("-----BEGIN CERTIFICATE-----\nAAAA"));
    assert!(Client::new(options.clone()).unwrap_err().what.contains("has no end"));
    options.roots = Roots::Given(Pem::text(&authority.root));
    options.identity = Some(Identity::new(Pem::text(&key), Pem::text(&key)));
    assert!(Client::new(options.clone()).unwrap_err().what.contains("certificates are not in it"));
    options.identity = Some(Identity::new(Pem::text(certificate), Pem::text(key)));
    assert!(Client::new(options).is_ok());
    let error = Client::name("a b").unwrap_err().to_string();
    assert!(error.contains("right: a name such as app.internal"), "{error}");
    assert!(Client::name("[::1]").is_ok());
}
