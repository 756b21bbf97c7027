//! Settings of parts that are yet to come: workers that are made on demand.
//!
//! They are understood and checked, so that an environment written for them is shown as what it is; `remuda config`
//! says that they have no effect yet.

use crate::config::setting::{Setting, Shape, Stage};

const LATER: Setting = Setting { stage: Stage::Later, ..Setting::BASE };

/// One such setting; its own variable comes first.
macro_rules! later {
    ($($id:ident $name:literal $env:expr, $default:literal, $shape:expr, $help:literal;)*) => {
        $(static $id: Setting =
            Setting { name: $name, env: &$env, default: $default, shape: $shape, help: $help, ..LATER };)*
        pub(super) const SETTINGS: &[&Setting] = &[&NOVITA_API_KEY, $(&$id,)*];
    };
}

static NOVITA_API_KEY: Setting = Setting {
    name: "fleet.novita_api_key",
    env: &["REMUDA_NOVITA_API_KEY", "NOVITA_API_KEY"],
    help: "API key of Novita AI",
    secret: true,
    ..LATER
};

later! {
    MANAGER "fleet.manager" ["REMUDA_WORKER_MANAGER", "WORKER_MANAGER"], "",
        Shape::Choice(&["docker", "novita"]), "Who makes workers on demand: docker or novita";
    IMAGE "fleet.image" ["REMUDA_IMAGE", "IMAGE"], "", Shape::Text, "Container image of a worker";
    MAX_WORKERS "fleet.max_workers" ["REMUDA_MAX_WORKERS", "MAX_WORKERS"], "10",
        Shape::Number, "Most workers to make";
    MIN_WORKERS "fleet.min_workers" ["REMUDA_MIN_WORKERS", "MIN_WORKERS"], "1",
        Shape::Number, "Workers to keep even when idle";
    IDLE_TIMEOUT "fleet.idle_timeout" ["REMUDA_IDLE_TIMEOUT", "IDLE_TIMEOUT"], "5m",
        Shape::Duration, "How long an idle worker stays";
    SCALE_UP_COOLDOWN "fleet.scale_up_cooldown" ["REMUDA_SCALE_UP_COOLDOWN", "SCALE_UP_COOLDOWN"], "1m",
        Shape::Duration, "Pause between two additions of workers";
    PORT_RANGE_START "fleet.port_range_start" ["REMUDA_PORT_RANGE_START", "PORT_RANGE_START"], "8188",
        Shape::Number, "First port for workers on this machine";
    PORT_RANGE_END "fleet.port_range_end" ["REMUDA_PORT_RANGE_END", "PORT_RANGE_END"], "8288",
        Shape::Number, "Last port for workers on this machine";
    NOVITA_BASE_URL "fleet.novita_base_url" ["REMUDA_NOVITA_BASE_URL", "NOVITA_BASE_URL"], "",
        Shape::Url, "Address of Novita AI's API";
    NOVITA_PRODUCT_ID "fleet.novita_product_id" ["REMUDA_NOVITA_PRODUCT_ID", "NOVITA_PRODUCT_ID"], "",
        Shape::Text, "Product to rent at Novita AI";
    NOVITA_IMAGE_URL "fleet.novita_image_url" ["REMUDA_NOVITA_IMAGE_URL", "NOVITA_IMAGE_URL"], "",
        Shape::Text, "Container image at Novita AI";
    NOVITA_GPU_NUM "fleet.novita_gpu_num" ["REMUDA_NOVITA_GPU_NUM", "NOVITA_GPU_NUM"], "",
        Shape::Number, "GPUs of one instance at Novita AI";
    NOVITA_ROOTFS_SIZE "fleet.novita_rootfs_size" ["REMUDA_NOVITA_ROOTFS_SIZE", "NOVITA_ROOTFS_SIZE"], "",
        Shape::Number, "Root disk of one instance at Novita AI, in GB";
    NOVITA_TIMEOUT "fleet.novita_timeout" ["REMUDA_NOVITA_TIMEOUT", "NOVITA_TIMEOUT"], "",
        Shape::Duration, "How long to wait for Novita AI";
}
