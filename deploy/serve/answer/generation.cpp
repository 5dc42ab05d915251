#include "deploy/serve/answer/generation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <iterator>
#include <string_view>
#include <utility>

namespace specdec::deploy {

namespace {

// Computes where the tokens of an answer lie in the answer's text.
class TokenPlaces {
 public:
  // `stripped`: the decoded text lacks the leading space of its first token.
  explicit TokenPlaces(bool stripped) : stripped_(stripped) {}

  // Adds a token of the echoed prompt `text` and returns its offset in characters. A special token is part of the text
  // only if the client wrote it there.
  size_t add_echoed(std::string_view text, std::string_view token, bool special) {
    const size_t offset = settled_;
    if (special && !text.substr(std::min(bytes_, text.size())).starts_with(token)) return offset;
    if (!special) token = in_text(token);
    bytes_ += token.size();
    settled_ += characters(token);
    return offset;
  }

  // Ends the echoed prompt `text`; the tokens added next belong to the answer.
  void end_echo(std::string_view text) {
    settled_ = characters(text);
    bytes_ = 0;
  }

  // Adds a token of the answer and returns its offset in characters. `token` is the token's bytes, "" for a special
  // token. If the token does not complete a character, its own bytes are counted until the character's text follows.
  // `range` is set to the token's bytes in the answer's text.
  size_t add(const TokenText& text, std::string_view token, TextRange& range) {
    const size_t offset = settled_ + unsettled_;
    if (!token.empty()) token = in_text(token);
    unsettled_ = text.bytes > 0 ? 0 : unsettled_ + characters(token);
    settled_ += text.characters;
    range = {bytes_, bytes_ + text.bytes};
    bytes_ += text.bytes;
    return offset;
  }

 private:
  std::string_view in_text(std::string_view token) {
    if (std::exchange(stripped_, false) && token.starts_with(' ')) token.remove_prefix(1);
    return token;
  }

  bool stripped_;                                   // the next token's leading space may be missing in the text
  size_t bytes_ = 0, settled_ = 0, unsettled_ = 0;  // settled_ and unsettled_ are in characters
};

class Generation final : public Exchange {
 public:
  explicit Generation(GenerationReply reply)
      : reply_(std::move(reply)),
        frame_(reply_.frame),
        stream_(reply_.stream),
        answers_(reply_.request->choices()),
        begun_(answers_.size(), false),
        calls_(answers_.size(), false),
        undecided_(answers_.size()),
        received_(answers_.size()),
        channel_(reply_.request->channel) {
    if (const auto& format = reply_.request->format)
      for (size_t i = 0; i < answers_.size(); ++i) parsers_.emplace_back(format);
    if (frame_.logprobs >= 0) make_places();
  }
  ~Generation() override {
    channel_->on_event({});
    channel_->cancel();
    // The request is answered, so its bytes are released from the memory budget now. The request itself may be kept
    // longer, by a record that waits for a slow disk, and its bytes would then block other requests.
    if (reply_.request->held) (void)reply_.request->held->resize(0);
  }

  void on_wake(std::function<void()> wake) override { channel_->on_event(std::move(wake)); }
  void abandon() override { channel_->cancel(); }

  Turn next() override {
    if (ended_) return {Turn::Kind::kEnd, {}, {}};
    std::string data;
    for (ChoiceEvent& event : merge(channel_->take())) {
      if (event.result && event.result->reason != FinishReason::kStop && event.result->reason != FinishReason::kLength)
        return fail(event.result->reason, std::move(data));
      collect(event);
      if (!stream_ && !within_bounds()) return too_long();
      if (stream_) data += events(event);
    }
    const bool complete =
        std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.result.has_value(); });
    if (complete && !stream_)
      return {Turn::Kind::kReply, {200, "application/json", full_reply(frame_, std::move(answers_)), {}}, {}};
    if (complete) {
      ended_ = true;
      data += usage_event(frame_, answers_) + done_event();
    }
    if (data.empty()) return {};
    sent_ = true;
    return {Turn::Kind::kData, {}, std::move(data)};
  }

 private:
  // The tokenizer may strip the first space of the shown text. With echo, the shown text begins with the prompt.
  // Without echo, the answer's first space is stripped only if the prompt has nothing but special tokens.
  void make_places() {
    const GenerationRequest& request = *reply_.request;
    for (size_t i = 0; i < answers_.size(); ++i) {
      const std::vector<int32_t>& prompt = request.prompts[i / static_cast<size_t>(request.n)];
      const bool begins =
          request.echo || std::all_of(prompt.begin(), prompt.end(), [this](int32_t id) { return is_special(id); });
      places_.emplace_back(begins && reply_.token_bytes->strips_first_space);
    }
  }

  // Merges events of the same choice, so that a slow client gets fewer, longer pieces.
  static std::vector<ChoiceEvent> merge(std::vector<ChoiceEvent> events) {
    std::vector<ChoiceEvent> merged;
    for (ChoiceEvent& event : events) {
      const auto same =
          std::find_if(merged.begin(), merged.end(), [&](const ChoiceEvent& m) { return m.choice == event.choice; });
      if (same == merged.end()) {
        merged.push_back(std::move(event));
        continue;
      }
      same->text += event.text;
      same->token_ids.insert(same->token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(same->logprobs));
      same->texts.insert(same->texts.end(), event.texts.begin(), event.texts.end());
      if (event.result) same->result = std::move(event.result);
    }
    return merged;
  }

  // Adds the event to the answer of its choice. If the reply is streamed, the answer holds only the next piece.
  void collect(const ChoiceEvent& event) {
    Answer& answer = answers_[event.choice];
    if (stream_) {
      answer.text = {};
      answer.token_ids.clear();
      answer.logprobs.clear();
    }
    const AnswerPiece piece = split(event);
    calls_[event.choice] = calls_[event.choice] || !piece.calls.empty();
    answer.text.append(piece);
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    received_[event.choice] += event.text.size();
    if (!event.logprobs.empty()) add_scored(event, answer);
    if (frame_.endpoint == Endpoint::kChat) release_content(event.choice, event.result.has_value(), answer);
    if (!stream_) write(answer);
    answer.result = event.result;
    if (!stream_) bytes_ += piece.bytes() + event.token_ids.size() * sizeof(int32_t);
  }

  // Adds the log-probabilities of an event. The log-probabilities of a chat wait until release_content() knows which
  // tokens are content.
  void add_scored(const ChoiceEvent& event, Answer& answer) {
    TokenPlaces& places = places_[event.choice];
    const GenerationRequest& request = *reply_.request;
    const size_t echoed = event.logprobs.size() - event.texts.size();
    const std::string* const prompt =
        echoed > 0 ? &request.texts[event.choice / static_cast<size_t>(request.n)] : nullptr;
    for (size_t i = 0; i < event.logprobs.size(); ++i) {
      const int32_t id = event.logprobs[i].token.id;
      const bool special = is_special(id);
      TokenEntry entry = entry_of(event.logprobs[i]);
      if (i < echoed) {
        entry.offset = places.add_echoed(*prompt, bytes_of(id), special);
        if (i + 1 == echoed) places.end_echo(*prompt);
        answer.logprobs.push_back(std::move(entry));
        continue;
      }
      const TokenText& text = event.texts[i - echoed];
      TextRange range;
      entry.offset = places.add(text, special ? "" : bytes_of(id), range);
      if (frame_.endpoint != Endpoint::kChat)
        answer.logprobs.push_back(std::move(entry));
      else if (text.bytes > 0 || !special)
        undecided_[event.choice].emplace_back(std::move(entry), range);
    }
  }

  // Moves the log-probabilities of a chat's content tokens to the answer, and drops those of thoughts, calls and
  // markers. A token waits until it is known whether its text is content. A token without text is treated like the text
  // after it.
  void release_content(size_t choice, bool ended, Answer& answer) {
    std::vector<TextRange> all = {{0, received_[choice]}};
    const std::vector<TextRange>& content = parsers_.empty() ? all : parsers_[choice].content();
    const size_t decided = ended ? SIZE_MAX : parsers_.empty() ? received_[choice] : parsers_[choice].decided();
    auto& waiting = undecided_[choice];
    for (; !waiting.empty(); waiting.pop_front()) {
      const auto [begin, own_end] = waiting.front().second;
      const size_t end = std::max(own_end, begin + 1), first = begin;
      const auto part =
          std::partition_point(content.begin(), content.end(), [&](const TextRange& r) { return r.end <= first; });
      if (part != content.end() && part->begin < end)
        answer.logprobs.push_back(std::move(waiting.front().first));
      else if (decided < end)
        return;
    }
  }

  AnswerPiece split(const ChoiceEvent& event) {
    if (parsers_.empty()) return {event.text, {}, {}};
    AnswerPiece piece = parsers_[event.choice].push(event.text);
    if (event.result) piece.append(parsers_[event.choice].finish());
    return piece;
  }

  // Converts log-probabilities to the JSON text of the reply as they arrive, to save memory. Not used for streams.
  void write(Answer& answer) {
    bytes_ -= answer.written.bytes();
    answer.written.add(frame_, answer.logprobs);
    bytes_ += answer.written.bytes();
    answer.logprobs.clear();
  }

  // The bytes reserved at admission are an estimate that long tokens may exceed, so the actual bytes are checked here.
  bool within_bounds() {
    if (bytes_ > reply_.reply_bytes) return false;
    const auto& held = reply_.request->held;
    return !held || bytes_ <= held->bytes() || held->resize(std::min(2 * bytes_, reply_.reply_bytes));
  }

  Turn too_long() {
    channel_->cancel();
    const ApiError error =
        bytes_ > reply_.reply_bytes
            ? invalid_parameter(reply_.max_tokens_param, "fewer tokens: the reply would be longer than " +
                                                             std::to_string(reply_.reply_bytes) + " bytes")
            : too_many_bytes();
    return {Turn::Kind::kReply, error_reply(error, reply_.request->id), {}};
  }

  const std::string& bytes_of(int32_t id) const { return reply_.token_bytes->tokens[static_cast<size_t>(id)]; }

  bool is_special(int32_t id) const {
    return std::binary_search(reply_.token_bytes->special.begin(), reply_.token_bytes->special.end(), id);
  }

  // Returns the name of a token in a list of log-probabilities.
  std::string shown(int32_t id) const { return frame_.tokens_as_ids ? "token_id:" + std::to_string(id) : bytes_of(id); }

  TokenEntry entry_of(const decode::PositionLogprobs& position) const {
    TokenEntry entry;
    entry.bytes = shown(position.token.id);
    if (!std::isnan(position.token.logprob)) entry.logprob = position.token.logprob;
    for (const decode::TokenLogprob& t : position.top) entry.top.emplace_back(shown(t.id), t.logprob);
    return entry;
  }

  std::string events(const ChoiceEvent& event) {
    std::string data;
    if (!begun_[event.choice]) data += first_event(frame_, event.choice);
    begun_[event.choice] = true;
    data += delta_event(frame_, event.choice, answers_[event.choice]);
    if (event.result) data += finish_event(frame_, event.choice, event.result->reason, calls_[event.choice]);
    return data;
  }

  // Ends the request with an error: as an HTTP status if no byte of the reply was sent, else as an event in the stream.
  Turn fail(FinishReason reason, std::string data) {
    channel_->cancel();
    const ApiError error = reason == FinishReason::kDrained       ? draining()
                           : reason == FinishReason::kNoTokenLeft ? no_token_left()
                           : reason == FinishReason::kMasksSpent  ? masks_spent()
                           : reason == FinishReason::kNoRoom      ? no_room()
                                                                  : internal_error();
    if (!sent_) return {Turn::Kind::kReply, error_reply(error, reply_.request->id), {}};
    ended_ = true;
    return {Turn::Kind::kData, {}, data + error_event(error, reply_.request->id) + done_event()};
  }

  const GenerationReply reply_;
  const ReplyFrame& frame_;
  const bool stream_;
  std::vector<Answer> answers_;
  std::vector<bool> begun_;
  std::vector<bool> calls_;            // [answer] whether it contains a function call
  std::vector<AnswerParser> parsers_;  // [answer]; empty: all text is content
  std::vector<TokenPlaces> places_;    // [answer]; empty without log-probabilities
  std::vector<std::deque<std::pair<TokenEntry, TextRange>>>
      undecided_;                 // [answer] → tokens of a possible function call, content if it is none
  std::vector<size_t> received_;  // [answer] → bytes of text received
  std::shared_ptr<Channel> channel_;
  size_t bytes_ = 0;  // bytes so far of a reply that is not streamed
  bool sent_ = false, ended_ = false;
};

}  // namespace

std::shared_ptr<Exchange> make_generation(GenerationReply reply) {
  return std::make_shared<Generation>(std::move(reply));
}

}  // namespace specdec::deploy
