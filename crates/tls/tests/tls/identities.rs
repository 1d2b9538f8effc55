//! Who a certificate was given to.

use crate::authority::{Authority, dns, uris};
use rcgen::SanType;
use tidegate_tls::identity;
use tidegate_tls::rustls::pki_types::CertificateDer;
use tidegate_tls::rustls::pki_types::pem::PemObject;

#[test]
fn one_spiffe_id_or_else_a_name_of_dns() {
    let authority = Authority::new();
    let both = |first: Vec<SanType>, second: Vec<SanType>| [first, second].concat();
    let shop = "spiffe://d.example/shop";
    for (names, who) in [
        (uris(&[shop]), Some(shop)),
        (both(dns(&["shop.internal"]), uris(&[shop])), Some(shop)),
        (dns(&["shop.internal"]), Some("dns:shop.internal")),
        (dns(&["Shop.Internal", "other"]), Some("dns:shop.internal")),
        (dns(&["*.internal", "shop.internal"]), Some("dns:shop.internal")),
        (dns(&["*.internal"]), None),
        // SPIFFE wants one URI; another name does not help then.
        (uris(&[shop, "spiffe://d.example/other"]), None),
        (uris(&[shop, "https://d.example/"]), None),
        (both(uris(&[shop, shop]), dns(&["shop.internal"])), None),
        (both(uris(&["spiffe://d.example/shop/"]), dns(&["shop.internal"])), None),
        // A URI that means nothing to us stands in nobody's way.
        (both(uris(&["https://d.example/"]), dns(&["shop.internal"])), Some("dns:shop.internal")),
        (uris(&["https://d.example/"]), None),
        (vec![SanType::IpAddress([127, 0, 0, 1].into())], None),
        (vec![], None),
    ] {
        let pem = authority.sign(names.clone()).0;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert_eq!(identity(&certificate).as_deref(), who, "{names:?}");
    }
    assert_eq!(identity(&CertificateDer::from(b"nonsense".to_vec())), None);
}
