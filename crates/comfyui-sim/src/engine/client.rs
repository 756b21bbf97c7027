//! Whose prompt it is: the `client_id` with all that people put there.

use crate::hub::{Hub, Outgoing};
use crate::json::{Dict, Json};

/// The owner of a prompt, as far as messages are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Client {
    /// None given, or null: some messages go to everybody, the others to nobody.
    Nobody,
    /// A text, with or without a socket.
    Named(String),
    /// A number or a bool: no socket can have such a name.
    Unheard,
    /// A list or an object: the first message ends the process.
    Unaddressable,
}

impl Client {
    pub(super) fn of(extra_data: &Dict) -> Client {
        match extra_data.get("client_id") {
            None | Some(Json::Null) => Client::Nobody,
            Some(Json::Str(name)) => Client::Named(name.clone()),
            Some(Json::List(_) | Json::Dict(_)) => Client::Unaddressable,
            Some(_) => Client::Unheard,
        }
    }

    /// The name of its socket.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Client::Named(name) => Some(name),
            _ => None,
        }
    }

    /// Sends to the owner; to nobody if there is none.
    pub(super) fn tell(&self, hub: &dyn Hub, message: Outgoing) {
        if *self != Client::Nobody {
            self.tell_or_all(hub, message);
        }
    }

    /// Sends to the owner; to everybody if there is none.
    pub(super) fn tell_or_all(&self, hub: &dyn Hub, message: Outgoing) {
        match self {
            Client::Nobody => hub.send(message, None),
            Client::Named(name) => hub.send(message, Some(name)),
            Client::Unheard => {}
            Client::Unaddressable => hub.send(Outgoing::Unaddressable, None),
        }
    }
}
