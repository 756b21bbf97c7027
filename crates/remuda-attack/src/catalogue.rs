//! Every attack by its name.

use crate::attacks::{
    answers, claims, deliveries, descriptions, fair, feeds, graphs, lanes, mass, memory, names, pages,
    proxies, replayed, secrets, share, stored, unread, values, workers,
};
use crate::stage::{Setup, Stage};
use anyhow::Result;
use futures_util::future::BoxFuture;

/// What an attack is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By what the second tenant feels, by memory, and by whether the server starts again.
    Load,
    /// By what the attacker gets.
    Check,
    /// As a load; then it is made again, and the server is killed in the middle of its work on it.
    Killed,
}

/// What an attacker does; it returns what it should not have been able to do.
type Deed = fn(Stage) -> BoxFuture<'static, Result<Vec<String>>>;

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// What is tried, in one line.
    pub what: &'static str,
    /// What it is judged by.
    pub kind: Kind,
    /// What is attacked.
    pub setup: Setup,
    /// Whether it is part of the short form.
    pub quick: bool,
    pub(crate) deed: Deed,
}

macro_rules! attacks {
    ($($name:literal $kind:ident $setup:ident $quick:literal $deed:path, $what:literal;)*) => {
        /// Every attack, in the order in which they are made.
        pub const CATALOGUE: &[Attack] = &[$(Attack {
            name: $name,
            what: $what,
            kind: Kind::$kind,
            setup: Setup::$setup,
            quick: $quick,
            deed: |stage| Box::pin($deed(stage)),
        }),*];
    };
}

attacks! {
    "graph-savers" Load Plain false graphs::savers, "two tasks with 12,000 SaveImage nodes each";
    "graph-dots" Load Plain true graphs::dots, "names of inputs made of 50,000 dots";
    "graph-infinities" Load Plain true graphs::infinities, "prompts with 15,000 inputs of 1e999";
    "graph-doubled-ids" Load Plain true graphs::doubled, "a graph of 3.4 MB that repeats its ids";
    "graph-targets" Load Plain false graphs::targets, "150,000 outputs and 10,000 targets";
    "graph-deep" Load Plain false graphs::deep, "values nested 100,000 deep";
    "graph-chain" Load Plain false graphs::chain, "a chain of 20,000 nodes";
    "graph-diamonds" Load Plain false graphs::diamonds, "a graph with 2^500 paths";
    "graph-fan" Load Plain false graphs::fan, "one node with 100,000 inputs";
    "graph-classes" Load Plain false graphs::classes, "20,000 nodes of classes that nobody has";
    "graph-long-names" Load Plain false graphs::long_names, "a class, an id and an input of 1 MB each";
    "graph-placements" Load Plain false graphs::placements, "20,000 inputs that name one asset";
    "graph-crowd" Load Plain false graphs::crowd, "64 graphs of 3 MB at once, again and again";
    "harmful-restart" Killed Plain true graphs::savers, "heavy graphs, and kill -9 in the middle of reading them: the task with two deaths is set aside, and no other";
    "answers-endless-200" Load Hostile true answers::endless_ok, "a ComfyUI whose answers never end";
    "answers-endless-500" Load Hostile false answers::endless_error, "a ComfyUI whose errors never end";
    "answers-gzip-bomb" Load Hostile true answers::gzip, "a ComfyUI whose answers unpack for ever";
    "answers-object-info" Load Hostile false answers::object_info, "a ComfyUI with 200,000 nodes";
    "answers-history" Load Hostile false answers::history, "a ComfyUI with a history of 300 MB";
    "answers-queue" Load Hostile false answers::queue, "a ComfyUI with an endless queue";
    "answers-sockets" Load Hostile false answers::socket_flood, "a ComfyUI that floods its websocket";
    "answers-socket-frame" Load Hostile false answers::socket_frame, "a ComfyUI that sends a frame without end";
    "answers-output" Load Hostile false answers::output, "a ComfyUI with an output file that never ends";
    "answers-trickle" Load Hostile false answers::trickle, "a ComfyUI that answers one byte a second";
    "answers-redirect" Check Hostile true answers::redirect, "a ComfyUI that sends the gateway to another address";
    "mask-bomb" Load Plain true memory::mask_bomb, "a mask of 1 MB with a text chunk that unpacks to 1 GB";
    "picture-bomb" Load Plain false memory::picture_bomb, "masks and previews of 30,000 by 30,000 pixels";
    "upload-parts" Load Plain false memory::many_parts, "a form with 200,000 parts";
    "slow-readers-settings" Load Plain false memory::settings, "settings of 180 MB, read by nobody, twelve times";
    "slow-readers-task" Load Plain true memory::task, "a task of 30 MB, asked for and not read, 40 times";
    "slow-readers-history" Load Plain false memory::history, "a long history, asked for and not read";
    "slow-readers-object-info" Load Plain false memory::object_info, "object_info, asked for and not read, 500 times";
    "slow-readers-list" Load Plain false stored::list, "500 tasks with 64 KiB of metadata each, listed and not read, 150 times";
    "slow-readers-documents" Load Plain false stored::documents, "4,000 documents in deep folders, listed and not read, 80 times";
    "unread-jobs" Load Plain false unread::jobs, "a prompt with a text of 29 MB as its output, asked for at /api/jobs and not read, 40 times";
    "unread-sync" Load Plain false unread::synchronous, "the same prompt at /prompt_sync, 30 times, and the answers not read";
    "unread-sockets" Load Plain false unread::sockets, "400 websockets that are not read, and a text of 3 MB for all of them";
    "forms-endless" Load Plain true unread::forms, "90 forms that never come to their first field";
    "documents-rewritten" Load Plain false stored::rewritten, "documents of 15 MiB, four at a time, written again and again";
    "readers-files" Load Plain false fair::files, "10,000 uploads, and 400 connections that ask for their names";
    "turns-shared" Load Plain false fair::turns, "settings of 15 MiB written by twelve at once, while the second tenant submits tasks of 100 KiB";
    "large-renders" Load Plain false stored::renders, "eight tasks of 30 MB, to be rendered";
    "retries" Load Plain false stored::retries, "a task of 30 MB, run again 40 times at once";
    "replayed-results" Load Plain false replayed::results, "a task that left 48 MiB, submitted again and cancelled again by 24 at once";
    "mass-restart" Load Plain false mass::restart, "16,000 prompts, and a restart";
    "mass-lists" Load Plain false mass::lists, "12,000 prompts, and lists and numbers of them over 64 connections";
    "mass-due" Load Plain false mass::due, "4,000 tasks with 64 KiB of metadata each that become due in the same second";
    "lanes-labels" Load Plain false lanes::labels, "4,000 tasks with another 64 labels each that nobody has, then 2,000 looks at one of them";
    "lanes-subsets" Load Plain false lanes::subsets, "4,000 tasks with another subset of existing classes each";
    "values-prompt" Load Plain false values::prompt, "31 MB of tiny values beside the graph of a prompt";
    "prompt-extra-data" Load Plain false values::extra_data, "up to 31 MB of zeros, of names and of nested objects in the extra_data of a valid prompt, 12 at once";
    "values-task" Load Plain false values::task, "31 MB of tiny values in the metadata, the fields and the nodes of a task";
    "values-controls" Load Plain false values::controls, "tiny values to /queue, /history, /interrupt, /free, /settings and jobs";
    "values-sockets" Load Plain false values::sockets, "websockets that say many tiny values, in messages of up to 16 MB";
    "values-worker" Load Plain false values::worker, "tiny values in everything that a key of the scope worker can say";
    "values-frames" Load Plain false values::live_frames, "32 MB of small live frames, and of frames with many values";
    "claims-parked" Load Plain false claims::parked, "a worker key with 4,000 claims that wait, each with 10,000 numbers of what is loaded";
    "beats-doubled" Load Plain false claims::doubled, "a worker key whose beats name one worker, or one lease, 20,000 times; 120 of them wait";
    "adopt-large" Load Plain false claims::adopted, "a worker key with 30 leases on tasks of 15 MB, taken over all at once";
    "workers-labels" Load Plain false fair::labels, "256 workers of one key with as many and as long labels as can be, asked for again and again";
    "details-streams" Load Plain true fair::details, "failures with 147,000 tiny values each, and event streams and tasks that are not read";
    "descriptions-many" Load Plain false descriptions::many, "a worker key with 130 small object_infos, to be read before the true ones";
    "descriptions-large" Load Plain false descriptions::huge, "a worker key with object_infos of 8 MiB and many values, without end";
    "stalled-bodies" Load Plain true share::stalled_bodies, "200 tasks whose bodies do not come";
    "stalled-uploads" Load Plain true share::stalled_uploads, "200 uploads whose bodies do not come";
    "stalled-prompts" Load Plain false share::stalled_prompts, "200 prompts whose bodies do not come";
    "unread-downloads" Load Plain true share::unread_downloads, "600 downloads that nobody reads";
    "sockets" Load Plain true share::sockets, "4,200 websockets of one key";
    "streams" Load Plain false share::streams, "2,000 event streams of one key";
    "feed-streams" Load Plain true feeds::streams, "700 readers of all events of one key, unread or slow, while it makes events";
    "held-requests" Load Plain false share::held, "1,200 requests that wait for the end of a task";
    "sync-requests" Load Plain false share::synchronous, "1,200 synchronous requests of one key";
    "idle-connections" Load Plain true share::idle, "12,000 connections that say nothing";
    "trickle-headers" Load Plain false share::trickle, "2,000 connections that send one byte of a header a second";
    "pipelining" Load Plain false share::pipelining, "100 connections with 2,000 requests in a row, unread";
    "flood" Load Plain false share::flood, "one key asks as fast as it can over 64 connections";
    "flood-no-key" Load Plain false share::flood_no_key, "somebody without a key asks as fast as he can";
    "hoard-settings" Check Narrow false share::hoard_settings, "settings and user data without end";
    "worker-key-spy" Check Sidecar true workers::spy, "reads the leases of another's worker";
    "worker-key-spoof" Check Sidecar true workers::spoof, "says the id of another's process and takes its tasks";
    "worker-key-end" Check Sidecar true workers::forge_end, "reports the end of another's task";
    "worker-key-release" Check Sidecar true workers::release, "lets go of another's worker";
    "worker-key-give-back" Check Sidecar true workers::give_back, "gives back another's task";
    "worker-key-discard" Check Sidecar true workers::discard, "deletes the outputs of another's task";
    "worker-key-beat" Check Sidecar true workers::beat, "renews another's lease and sets its progress";
    "worker-key-frames" Check Sidecar true workers::frames, "speaks in another's task";
    "worker-key-name" Check Sidecar true workers::same_name, "registers a worker under another's name";
    "worker-key-gateway" Check Plain true workers::gateway, "registers an address under the gateway's own id, to be fetched";
    "worker-key-delivery" Check Sidecar true workers::delivery, "delivers files with .. in their names";
    "worker-key-forget" Check Sidecar true deliveries::forgotten, "names another's lease, so that its deliveries count no more";
    "worker-key-hoard" Check Narrow false workers::hoard, "registers workers and object_info without end";
    "loader-names" Check Plain true names::loaders, "LoadImage with paths of the host and of other tenants";
    "linked-names" Check Plain true names::linked, "the same names, by way of a node that only holds a text";
    "long-names" Check Page true names::long, "names of 5,000 characters in every place";
    "symlinks" Check Page true names::links, "links that leave the folder, and dotfiles";
    "traversal" Check Page true names::traversal, "every spelling of .. on every route with a path";
    "worker-pages" Check Hostile true pages::worker_html, "an HTML page from a worker, on the API's origin";
    "nosniff" Check Plain true pages::nosniff, "outputs and uploads that could be pages";
    "foreign-cookie" Check Plain true pages::cookie, "/?token= from a foreign page";
    "host-list" Check Open true pages::host_list, "a list in one Host header, and foreign hosts";
    "rebinding" Check Insecure true pages::rebinding, "DNS rebinding against --insecure --cors-origin *";
    "login-guessing" Check Plain true secrets::guessing, "wrong keys, one after the other";
    "revoked-key" Check Plain true secrets::revoked, "streams, sockets and held requests of a revoked key";
    "permissions" Check Plain true secrets::permissions, "other users of the machine read the data directory";
    "secrets-at-rest" Check Plain true secrets::at_rest, "a paid key and the key between servers, looked for in every file of the data directory";
    "secrets-nested" Check Plain true secrets::nested, "keys deep inside extra_data and under other names, looked for in files and answers";
    "workers-endpoint" Check Plain true secrets::endpoints, "addresses of workers, asked for without the scope admin";
    "scopes" Check Plain true secrets::scopes, "every key on every route that it has no scope for";
    "descriptions-forged" Check Plain true descriptions::forge, "a worker key that describes the nodes of the installation anew";
    "address-share" Check Proxied false proxies::crowded, "20 tenants behind one address of a trusted proxy take its permits and its rate";
    "forwarded" Check Proxied false proxies::feigned, "addresses that a guesser writes itself, passed on by a trusted proxy";
}

impl Attack {
    /// The attack of this name.
    pub fn named(name: &str) -> Option<&'static Attack> {
        CATALOGUE.iter().find(|attack| attack.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_can_be_typed() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|attack| attack.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        for name in names {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{name}");
        }
    }
}
