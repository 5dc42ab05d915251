#include "cli/suggestion.h"

#include <algorithm>
#include <cctype>

namespace specdec::cli {

namespace {

std::string plain(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

size_t mistakes(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = above;
    std::swap(above, row);
  }
  return above.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  const std::string typed = plain(word);
  size_t least = std::max<size_t>(1, (typed.size() + 2) / 3) + 1, beginnings = 0;
  std::string best, longer;
  for (const std::string& name : known) {
    const std::string candidate = plain(name);
    if (const size_t n = mistakes(typed, candidate); n < least && n < candidate.size()) {
      least = n;
      best = name;
    }
    if (typed.size() >= 2 && candidate.starts_with(typed) && name != longer) {
      ++beginnings;
      longer = name;
    }
  }
  // If exactly one name begins with the typed text, that name is likelier meant than a name that differs by two or more
  // mistakes.
  return beginnings == 1 && least > 1 ? longer : best;
}

}  // namespace specdec::cli
