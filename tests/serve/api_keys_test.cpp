#include "deploy/serve/api/api_keys.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/serve/fixture.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::put;

TEST(ApiKeys, AcceptsBearerAndBasicOfEveryKeyAndNothingElse) {
  const Scratch dir;
  put(dir / "keys", "# people\nfirst-key-123  alice\n\n second-key-456\tbob\r\nthird-key-789");
  const ApiKeys keys = ApiKeys::load(dir / "keys");
  EXPECT_TRUE(keys.required());
  for (const char* good : {"Bearer first-key-123", "bearer second-key-456", "BEARER   third-key-789 ",
                           "Basic YW55Om1lOmZpcnN0", "Basic OnNlY29uZC1rZXktNDU2", "basic dXNlcjpmaXJzdC1rZXktMTIz"})
    EXPECT_EQ(keys.accepts(good), std::string(good) != "Basic YW55Om1lOmZpcnN0") << good;
  for (const char* bad : {"", "Bearer", "Bearer ", "first-key-123", "Bearer first-key-12", "Bearer first-key-1234",
                          "Bearer alice", "Bearer # people", "Token first-key-123", "Basic first-key-123", "Basic !!!!",
                          "Basic Zmlyc3Qta2V5LTEyMw==", "Bearerfirst-key-123"})
    EXPECT_FALSE(keys.accepts(bad)) << bad;
  EXPECT_FALSE(ApiKeys().required());
  EXPECT_EQ(ApiKeys().tenant("Bearer first-key-123"), nullptr);
}

TEST(ApiKeys, ATenantIsTheNameOfAKeyAndKeysMayShareIt) {
  const Scratch dir;
  put(dir / "keys", "first-key-123  alice cooper \nsecond-key-456\tbob\nthird-key-789\nfourth-key-000 bob\n");
  const ApiKeys keys = ApiKeys::load(dir / "keys");
  EXPECT_EQ(*keys.tenant("Bearer first-key-123"), "alice cooper");
  EXPECT_EQ(*keys.tenant("Bearer second-key-456"), "bob");
  EXPECT_EQ(*keys.tenant("Basic OnNlY29uZC1rZXktNDU2"), "bob");
  EXPECT_EQ(*keys.tenant("Bearer fourth-key-000"), "bob");
  EXPECT_EQ(*keys.tenant("Bearer third-key-789"), sha256_hex("third-key-789").substr(0, 12)) << "without a name";
  EXPECT_EQ(keys.tenant("Bearer third-key-788"), nullptr);
  EXPECT_EQ(keys.tenants().size(), 3u);
}

TEST(ApiKeys, ABadFileIsRefused) {
  const Scratch dir;
  put(dir / "empty", "# nothing\n\n");
  expect_error(ErrorKind::kConfig, {"no API key"}, [&] { ApiKeys::load(dir / "empty"); });
  put(dir / "short", "good-key-1\nshort\n");
  expect_error(ErrorKind::kConfig, {"line 2", "8 characters"}, [&] { ApiKeys::load(dir / "short"); });
  put(dir / "twice", "good-key-1\ngood-key-1 again\n");
  expect_error(ErrorKind::kConfig, {"line 2", "twice"}, [&] { ApiKeys::load(dir / "twice"); });
  expect_error(ErrorKind::kConfig, {"absent"}, [&] { ApiKeys::load(dir / "absent"); });
}

TEST(ApiKeys, OneKeyMayComeFromTheEnvironment) {
  const ApiKeys keys = ApiKeys::single("only-key-1");
  EXPECT_EQ(*keys.tenant("Bearer only-key-1"), sha256_hex("only-key-1").substr(0, 12));
  EXPECT_EQ(keys.tenant("Bearer only-key-2"), nullptr);
  expect_error(ErrorKind::kConfig, {"SPECDEC_API_KEY", "8 characters", "found 5"}, [] { ApiKeys::single("short"); });
  expect_error(ErrorKind::kConfig, {"SPECDEC_API_KEY", "white space"},
               [] { ApiKeys::single("two-keys-1 two-keys-2"); });
}

TEST(CheckExposure, OnlyLoopbackGoesWithoutKeys) {
  for (const char* host : {"127.0.0.1", "127.8.9.1", "::1"}) EXPECT_NO_THROW(check_exposure(host, ApiKeys())) << host;
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "192.168.1.1", ""})
    expect_error(ErrorKind::kUsage, {"--api-key-file"}, [&] { check_exposure(host, ApiKeys()); });
  expect_error(ErrorKind::kUsage, {"--host"}, [&] { check_exposure("no such host.invalid", ApiKeys()); });
  const Scratch dir;
  put(dir / "keys", "good-key-1\n");
  EXPECT_NO_THROW(check_exposure("0.0.0.0", ApiKeys::load(dir / "keys")));
}

}  // namespace
}  // namespace specdec::deploy
