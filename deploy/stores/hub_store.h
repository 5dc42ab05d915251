// Packages at a hub: hf://org/name. In such a repository every package is one commit whose root is the package's
// directory. A channel is a branch and its log the branch's history; the tag sha256-<digest> names the package.
#pragma once

#include "deploy/stores/package_store.h"

namespace specdec::deploy {

const PackageStore& hub_store();

}  // namespace specdec::deploy
