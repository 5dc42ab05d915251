// Writes llama.cpp's logits for given tokens. tests/bench/quantised_quality.py compiles it against a build of
// llama.cpp.
//
// Usage: llama_logits GGUF TOKENS OUT. TOKENS has one text a line, as token ids between spaces. OUT receives fp32
// logits [tokens, vocabulary] of one text after the other.
#include <llama.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 2;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048, params.n_batch = 2048, params.n_threads = 2, params.n_threads_batch = 2;
  llama_context* context = llama_init_from_model(model, params);
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::ifstream texts(argv[2]);
  std::ofstream out(argv[3], std::ios::binary);
  std::string line;
  while (std::getline(texts, line)) {
    std::istringstream numbers(line);
    std::vector<llama_token> tokens;
    for (llama_token id; numbers >> id;) tokens.push_back(id);
    llama_memory_clear(llama_get_memory(context), true);
    llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
    for (const llama_token id : tokens) {
      const int at = batch.n_tokens++;
      batch.token[at] = id, batch.pos[at] = at, batch.n_seq_id[at] = 1, batch.seq_id[at][0] = 0, batch.logits[at] = 1;
    }
    if (llama_decode(context, batch) != 0) return 3;
    for (int i = 0; i < batch.n_tokens; ++i)
      out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, i)),
                static_cast<std::streamsize>(sizeof(float)) * vocab);
    llama_batch_free(batch);
  }
}
