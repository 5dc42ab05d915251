// Tells random strings (keys, tokens) from words, identifiers and paths.
#pragma once

#include <string_view>

namespace specdec::data {

// How many bits likelier the most random stretch of `run` (12 characters or more of [A-Za-z0-9+/_-]) is as a random
// string than as an identifier: the greatest sum over a stretch of log2 P(random) - log2 P(identifier), over five
// alphabets (base64, hexadecimal in either case, lower and upper case with digits). P(identifier) is a model of letter
// pairs and of changes between lower case, upper case, digits and signs, made by tests/bench/token_model.py. A random
// string of 20 letters and digits has 59 bits in the median, and less than 27 in one case of a hundred; of 1,441
// identifiers and paths of 20 characters or more, one in 40 has more than 20. Never below 0. Linear in the length.
double surprise_bits(std::string_view run);

// Shannon entropy of the characters in bits a character: 4.0 at most for hexadecimal, below 3 for what repeats itself.
double character_entropy(std::string_view run);

}  // namespace specdec::data
