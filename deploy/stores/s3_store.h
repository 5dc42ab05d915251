// Packages in S3: s3://bucket/prefix, laid out as in a directory.
#pragma once

#include "deploy/stores/package_store.h"

namespace specdec::deploy {

const PackageStore& s3_store();

}  // namespace specdec::deploy
