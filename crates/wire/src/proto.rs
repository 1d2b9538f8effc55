//! Protobuf: the quota server's own, and that of others: ORCA, `google.rpc`, gRPC health, Doorman,
//! etcd, and Envoy's rate limits.
//!
//! Generated from the files in `proto/` by `tidegate-codegen` and committed. Modules are the
//! packages; maps are ordered, so that equal messages are equal bytes. Clients and servers of the
//! services come with the feature `grpc`, on whatever transport their user has.

#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::derive_partial_eq_without_eq,
    unused_qualifications,
    rustdoc::all,
    reason = "generated, and not for people to read"
)]

/// The data plane API shared by gRPC and Envoy.
pub mod xds {
    /// Messages.
    pub mod data {
        /// Load reports.
        pub mod orca {
            /// The only version there is.
            pub mod v3 {
                include!("generated/xds.data.orca.v3.rs");
            }
        }
    }
    /// Services.
    pub mod service {
        /// Load reports on a stream.
        pub mod orca {
            /// The only version there is.
            pub mod v3 {
                include!("generated/xds.service.orca.v3.rs");
            }
        }
    }
}

/// What gRPC uses of Google's common messages.
pub mod google {
    /// Statuses and their details.
    pub mod rpc {
        include!("generated/google.rpc.rs");
    }
}

/// gRPC's own services.
pub mod grpc {
    /// Whether a task takes requests.
    pub mod health {
        /// The only version there is.
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
        }
    }
}

/// Our own.
pub mod tidegate {
    /// The quota server.
    pub mod quota {
        /// The current version.
        pub mod v1 {
            include!("generated/tidegate.quota.v1.rs");
        }
    }
}

/// Doorman's capacity service.
pub mod doorman {
    include!("generated/doorman.rs");
}

/// etcd's services.
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}

/// etcd's keys.
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Envoy's rate limits.
pub mod envoy {
    /// Shared configuration.
    pub mod config {
        /// Of the core.
        pub mod core {
            /// The current version.
            pub mod v3 {
                include!("generated/envoy.config.core.v3.rs");
            }
        }
    }
    /// Shared by extensions.
    pub mod extensions {
        /// Shared by several.
        pub mod common {
            /// What requests are counted under.
            pub mod ratelimit {
                /// The current version.
                pub mod v3 {
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    /// Services that Envoy calls.
    pub mod service {
        /// RLQS: limits pushed to Envoy.
        pub mod rate_limit_quota {
            /// The current version.
            pub mod v3 {
                include!("generated/envoy.service.rate_limit_quota.v3.rs");
            }
        }
        /// RLS: Envoy asks for every request.
        pub mod ratelimit {
            /// The current version.
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    /// Basic types.
    pub mod r#type {
        /// The current version.
        pub mod v3 {
            include!("generated/envoy.r#type.v3.rs");
        }
    }
}
