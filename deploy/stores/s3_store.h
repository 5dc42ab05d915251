// Packages in S3, laid out as in a directory: s3://bucket/prefix.
#pragma once

#include "deploy/stores/package_store.h"

namespace specdec::deploy {

const PackageStore& s3_store();

}  // namespace specdec::deploy
