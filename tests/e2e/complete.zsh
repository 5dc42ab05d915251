#!/usr/bin/env zsh
# complete.zsh FOLDER LINE: prints the words that zsh would insert at the end of LINE, with the completion functions of
# FOLDER. The line is typed into a second zsh in a pseudo-terminal, whose compadd prints the words.
zmodload zsh/zpty || exit 1
zpty shell zsh -f -i
setup=$(mktemp)
cat > $setup <<END
fpath=($1 \$fpath)
END
cat >> $setup <<'END'
PROMPT=
autoload -Uz compinit
compinit -u -d ~/.zcompdump
bindkey '^M' undefined
bindkey '^J' undefined
bindkey '^I' complete-word
zstyle ':completion:*' insert-tab false
zstyle ':completion:*' list-separator ''
mark() { echo -E - $'\0' }
compprefuncs=(mark)
comppostfuncs=(mark exit)
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return
  fi
  local -a hits
  builtin compadd -A hits "$@"
  (( $#hits )) && printf 'word %s\n' $hits
}
echo ok
END
zpty -w shell "source $setup"
repeat 10; do
  zpty -r shell line
  [[ $line == ok* ]] && break
done
rm -f $setup
zpty -w shell "$2"$'\t'
integer marks=0
while zpty -r shell; do :; done | while IFS= read -r line; do
  line=${line%$'\r'}
  if [[ $line == *$'\0' ]]; then
    (( marks++ )) && exit 0
  elif (( marks )) && [[ $line == word\ * ]]; then
    print -r -- $line
  fi
done
