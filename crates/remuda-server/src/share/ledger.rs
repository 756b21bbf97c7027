//! Who holds how much, and who may take more.

use std::collections::HashMap;
use std::hash::Hash;

use remuda_core::Tenant;

use super::guest::{Address, Guest};

/// Nobody may hold more than this many times what is free.
const FAVOUR: u64 = 3;

/// Why nothing more is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The guest has its share.
    Share,
    /// There is nothing left for anybody.
    Whole,
}

/// Who holds how much of something.
#[derive(Debug)]
pub(crate) struct Ledger {
    whole: u64,
    /// What one tenant may hold of it, however much is free.
    each: u64,
    used: u64,
    tenants: HashMap<Tenant, u64>,
    addresses: HashMap<Address, u64>,
}

impl Ledger {
    pub(crate) fn new(whole: u64) -> Self {
        Self::capped(whole, whole)
    }

    /// … of which one tenant never holds more than `each`.
    pub(crate) fn capped(whole: u64, each: u64) -> Self {
        Self { whole, each, used: 0, tenants: HashMap::new(), addresses: HashMap::new() }
    }

    /// How much there is in all.
    pub(crate) fn whole(&self) -> u64 {
        self.whole
    }

    /// Takes this much for a guest, at all levels or at none.
    pub(crate) fn take(&mut self, guest: &Guest, amount: u64) -> Result<(), Refusal> {
        let free = self.whole.saturating_sub(self.used);
        let most = free.saturating_mul(FAVOUR);
        let held = |held: Option<&u64>| held.copied().unwrap_or(0);
        let by_tenant = guest.tenant.as_ref().map_or(0, |tenant| held(self.tenants.get(tenant)));
        let by_address = guest.address.as_ref().map_or(0, |address| held(self.addresses.get(address)));
        if amount > free {
            // Whoever has much of it is told so; it is not the others' fault.
            let much = by_tenant.max(by_address) > self.whole / 2 && free > 0;
            return Err(if much { Refusal::Share } else { Refusal::Whole });
        }
        if by_tenant.max(by_address).saturating_add(amount) > most || by_tenant + amount > self.each {
            return Err(Refusal::Share);
        }
        self.used += amount;
        if let Some(tenant) = &guest.tenant {
            match self.tenants.get_mut(tenant) {
                Some(held) => *held += amount,
                None => drop(self.tenants.insert(tenant.clone(), amount)),
            }
        }
        if let Some(address) = guest.address {
            *self.addresses.entry(address).or_default() += amount;
        }
        Ok(())
    }

    /// Gives back what was taken.
    pub(crate) fn give(&mut self, guest: &Guest, amount: u64) {
        self.used = self.used.saturating_sub(amount);
        if let Some(tenant) = &guest.tenant {
            lower(&mut self.tenants, tenant, amount);
        }
        if let Some(address) = &guest.address {
            lower(&mut self.addresses, address, amount);
        }
    }

    /// How much a tenant holds.
    pub(crate) fn held_by(&self, tenant: Option<&Tenant>) -> u64 {
        tenant.and_then(|tenant| self.tenants.get(tenant)).copied().unwrap_or(0)
    }
}

/// Guests that hold nothing are not remembered.
fn lower<K: Eq + Hash>(held: &mut HashMap<K, u64>, who: &K, amount: u64) {
    if let Some(left) = held.get_mut(who) {
        *left = left.saturating_sub(amount);
        if *left == 0 {
            held.remove(who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(tenant: &str, address: Option<&str>) -> Guest {
        let address = address.and_then(|text| Address::of(text.parse().unwrap()));
        Guest { tenant: Some(Tenant::new(tenant).unwrap()), address }
    }

    /// Takes one after the other until it is refused.
    fn all(ledger: &mut Ledger, guest: &Guest) -> (u64, Refusal) {
        let mut taken = 0;
        loop {
            match ledger.take(guest, 1) {
                Ok(()) => taken += 1,
                Err(refusal) => return (taken, refusal),
            }
        }
    }

    #[test]
    fn the_first_gets_three_quarters_and_there_is_something_for_everybody_who_comes() {
        let mut ledger = Ledger::new(64);
        assert_eq!(all(&mut ledger, &guest("a", None)), (48, Refusal::Share));
        assert_eq!(all(&mut ledger, &guest("b", None)), (12, Refusal::Share));
        assert_eq!(all(&mut ledger, &guest("c", None)), (3, Refusal::Share));
        assert_eq!(all(&mut ledger, &guest("d", None)), (1, Refusal::Whole));
        assert_eq!(ledger.take(&guest("e", None), 1), Err(Refusal::Whole));
        ledger.give(&guest("a", None), 40);
        assert_eq!(ledger.take(&guest("a", None), 1), Ok(()), "what was given back can be had again");
        assert!(ledger.take(&guest("e", None), 1).is_ok());
    }

    #[test]
    fn many_keys_of_one_address_are_one_guest() {
        let mut ledger = Ledger::new(64);
        let taken: u64 =
            (0..10).map(|n| all(&mut ledger, &guest(&format!("t{n}"), Some("192.0.2.7"))).0).sum();
        assert_eq!(taken, 48);
        assert!(ledger.take(&guest("other", Some("192.0.2.8")), 1).is_ok());
    }

    #[test]
    fn one_tenant_holds_no_more_than_each_may() {
        let mut ledger = Ledger::capped(6, 2);
        assert_eq!(all(&mut ledger, &guest("a", None)), (2, Refusal::Share));
        assert_eq!(all(&mut ledger, &guest("b", None)), (2, Refusal::Share));
        ledger.give(&guest("a", None), 1);
        assert_eq!(ledger.take(&guest("a", None), 1), Ok(()));
    }

    #[test]
    fn small_rooms_are_used_and_nothing_is_remembered_of_who_left() {
        for whole in 1..4 {
            let mut ledger = Ledger::new(whole);
            let only = guest("a", Some("192.0.2.7"));
            assert!(ledger.take(&only, 1).is_ok());
            ledger.give(&only, 1);
            assert!(ledger.tenants.is_empty() && ledger.addresses.is_empty() && ledger.used == 0);
        }
        let mut ledger = Ledger::new(100);
        assert!(ledger.take(&guest("a", None), 80).is_ok(), "one large thing, if there is room");
        assert_eq!(ledger.take(&guest("a", None), 30), Err(Refusal::Share));
        assert_eq!(ledger.take(&guest("b", None), 30), Err(Refusal::Whole));
        assert!(ledger.take(&guest("b", None), 15).is_ok());
    }
}
