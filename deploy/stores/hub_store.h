// Stores packages in repositories of the Hugging Face hub: hf://org/name. Every package is one commit whose root is the
// package's directory. A tag sha256-<digest> names the package. A channel is a branch; the branch's history is the
// channel's log.
#pragma once

#include "deploy/stores/package_store.h"

namespace specdec::deploy {

const PackageStore& hub_store();

}  // namespace specdec::deploy
