// A small SentencePiece vocabulary with tokens of every kind.
#pragma once

#include <array>

#include "tests/base/gguf/sample_model.h"

namespace specdec::testing {

// Returns "<0x00>" to "<0xFF>", and `further` behind them.
inline std::vector<std::string> bytes_and(const std::vector<std::string>& further) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    tokens.push_back(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
  }
  tokens.insert(tokens.end(), further.begin(), further.end());
  return tokens;
}

struct Piece {
  const char* text;
  int32_t type;
  float score;
};
// The bytes have the ids 3 to 258 and stand between the first three pieces and the others.
inline constexpr std::array<Piece, 15> kPieces = {{{"<unk>", 2, 0},
                                                   {"<s>", 3, 0},
                                                   {"</s>", 3, 0},
                                                   {"▁", 1, -10},
                                                   {"a", 1, -11},
                                                   {"b", 1, -12},
                                                   {"c", 1, -13},
                                                   {"ab", 1, -1},
                                                   {"▁ab", 1, -2},
                                                   {"abc", 1, -3},
                                                   {"bc", 1, -4},
                                                   {"▁▁", 1, -1e9F},
                                                   {"▁▁▁", 1, -1e9F},
                                                   {"<turn>", 3, -1000},
                                                   {"  x", 4, -1000}}};

inline SampleModel sentencepiece_model() {
  constexpr uint32_t kByte = 6;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;
  const auto add = [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      tokens.emplace_back(kPieces[i].text);
      types.push_back(kPieces[i].type);
      scores.push_back(kPieces[i].score);
    }
  };
  add(0, 3);
  for (const std::string& byte : bytes_and({})) {
    tokens.push_back(byte);
    types.push_back(kByte);
    scores.push_back(0);
  }
  add(3, kPieces.size());
  SampleModel model("llama");
  model.vocabulary("llama", tokens, types);
  model.file.add_array<float>("tokenizer.ggml.scores", 6, scores);
  return model;
}

}  // namespace specdec::testing
