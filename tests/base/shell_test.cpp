#include "base/shell.h"

#include <gtest/gtest.h>

namespace specdec {
namespace {

TEST(OneLine, ShowsNothingThatATerminalObeys) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[31md\x7f\x07"), "a b c [31md  ");
  EXPECT_EQ(one_line("x\xC2\x9B"
                     "31m \xC2\x85 \xC2\xA0"),
            "x 31m   \xC2\xA0")
      << "of Unicode too, and a space that does not break stays";
  EXPECT_EQ(one_line("a\xE2\x80\xAE"
                     "b\xE2\x81\xA6"
                     "c\xE2\x80\xA8"
                     "d\xD8\x9C"
                     "e\xE2\x80\x8F"),
            "a b c d e ")
      << "marks of direction, separators of lines";
  for (const char* text :
       {"", "plain", "M\xC3\xBCller \xE2\x80\x93 \xE2\x82\xAC \xF0\x9F\x98\x80", "\xC2", "\xE2\x80", "\xD8"})
    EXPECT_EQ(one_line(text), text);
}

}  // namespace
}  // namespace specdec
