// Distinguishes random strings (keys, tokens) from words, identifiers and paths.
#pragma once

#include <string_view>

namespace specdec::data {

// Returns how random `run` looks, in bits: the largest sum of log2 P(random) - log2 P(identifier) over any run of at
// least 12 characters of [A-Za-z0-9+/_-], and never below 0. P(random) is tried for five alphabets: base64, hexadecimal
// in either case, and digits with lower-case or upper-case letters. P(identifier) is a model of letter pairs and of
// changes between lower case, upper case, digits and signs, made by tests/bench/token_model.py. For random strings of
// 20 letters and digits, the median result is 59 bits, and one string in 100 has fewer than 27 bits. Of 1,441
// identifiers and paths of 20 or more characters, one in 40 has more than 20 bits. Time is linear in the length.
double surprise_bits(std::string_view run);

// Returns the Shannon entropy in bits per character: at most 4.0 for hexadecimal digits in one case, below 3 for
// repetitive text.
double character_entropy(std::string_view run);

}  // namespace specdec::data
