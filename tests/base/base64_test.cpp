#include "base/base64.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

// Examples of RFC 4648, section 10.
TEST(Base64, KnownAnswers) {
  const std::string text = "foobar", encoded[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (size_t n = 0; n <= text.size(); ++n) EXPECT_EQ(base64(text.substr(0, n)), encoded[n]);
  EXPECT_EQ(base64(std::string("\xfb\xff\0", 3)), "+/8A");
  EXPECT_EQ(base64(std::string(300, 'a')).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace specdec
