#include "monitor/actions/channel.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;
using testing::Scratch;

TEST(Channel, APackageThatWasRemovedIsNothing) {
  const Scratch dir;
  const std::string digest(64, 'a');
  EXPECT_FALSE(package_in(dir / "store", digest)) << "no store";
  make_directories(dir / "store" / "packages");
  EXPECT_FALSE(package_in(dir / "store", digest)) << "a store without it";
  make_directories(dir / "store" / "packages" / ("sha256-" + digest));
  expect_error(ErrorKind::kData, {"manifest.json"}, [&] { package_in(dir / "store", digest); });
}

}  // namespace
}  // namespace specdec::monitor
