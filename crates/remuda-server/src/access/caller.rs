//! Who asks. A handler takes the caller with the scope that it needs; without one it does not compile into a route
//! that anybody can reach, because the gate lets nobody pass unnamed.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use remuda_core::{KeyId, Scope, Scopes, Tenant};

use crate::access::keys::{Admission, Known};
use crate::error::ApiError;

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Whose tasks it makes.
    pub(crate) tenant: Tenant,
    scopes: Scopes,
    /// The public name of the key it showed; none before there are keys.
    key_id: Option<KeyId>,
    /// How long it may stay.
    admission: Arc<Admission>,
}

impl Caller {
    /// Anybody on this machine, before the first key exists.
    pub(crate) fn local(admission: Arc<Admission>) -> Self {
        Self { tenant: Tenant::default_tenant(), scopes: Scope::ALL.into(), key_id: None, admission }
    }

    pub(crate) fn of_key(known: &Known, admission: Arc<Admission>) -> Self {
        let record = &known.record;
        Self {
            tenant: record.tenant.clone(),
            scopes: record.scopes.clone(),
            key_id: Some(record.id),
            admission,
        }
    }

    /// How long it may stay: what is open for long must end with it.
    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// The public name of the key it showed; none before there are keys.
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        self.key_id
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// Whether it may see what belongs to this tenant.
    pub(crate) fn sees(&self, tenant: &Tenant) -> bool {
        self.tenant == *tenant || self.is_admin()
    }

    fn with(parts: &Parts, scope: Scope) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Self>().cloned();
        let caller =
            caller.ok_or_else(|| ApiError::internal("a route was reached without passing the gate"))?;
        if caller.is_admin() || caller.scopes.contains(&scope) {
            return Ok(caller);
        }
        Err(ApiError::forbidden("missing_scope", format!("this key lacks the scope {scope}")))
    }
}

macro_rules! caller_with {
    ($(#[$doc:meta])* $name:ident, $scope:expr) => {
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) Caller);

        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
                Caller::with(parts, $scope).map(Self)
            }
        }
    };
}

caller_with!(
    /// May look.
    ReadCaller,
    Scope::Read
);
caller_with!(
    /// May submit, cancel, retry and upload.
    SubmitCaller,
    Scope::Submit
);
caller_with!(
    /// May claim and report tasks of every tenant.
    WorkerCaller,
    Scope::Worker
);
caller_with!(
    /// May do everything.
    AdminCaller,
    Scope::Admin
);
