// Distinguishes random strings (keys, tokens) from words, identifiers and paths.
#pragma once

#include <string_view>

namespace specdec::data {

// Returns by how many bits the most random stretch of `run` (12 or more characters of [A-Za-z0-9+/_-]) is likelier as a
// random string than as an identifier: the largest sum over a stretch of log2 P(random) - log2 P(identifier), over five
// alphabets (base64, hexadecimal in either case, lower and upper case with digits). P(identifier) is a model of letter
// pairs and of changes between lower case, upper case, digits and signs, made by tests/bench/token_model.py. A random
// string of 20 letters and digits has 59 bits in the median, and fewer than 27 in one of a hundred cases; of 1,441
// identifiers and paths of 20 or more characters, one in 40 has more than 20. The result is never below 0. Time is
// linear in the length.
double surprise_bits(std::string_view run);

// Returns the Shannon entropy in bits per character: at most 4.0 for hexadecimal, below 3 for repetitive text.
double character_entropy(std::string_view run);

}  // namespace specdec::data
