"""The step families: all steps of programs as table rows, each with its drawing rule and its call of torch."""
