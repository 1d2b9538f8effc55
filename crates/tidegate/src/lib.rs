//! Overload protection for axum, tonic, hyper and reqwest services.
