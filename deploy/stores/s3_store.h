// Stores packages in S3: s3://bucket/prefix, with the same layout as in a directory.
#pragma once

#include "deploy/stores/package_store.h"

namespace specdec::deploy {

const PackageStore& s3_store();

}  // namespace specdec::deploy
