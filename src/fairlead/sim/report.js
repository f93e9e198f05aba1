// Shows the values of a chart under the mouse.
const tip = document.getElementById('tip');
for (const svg of document.querySelectorAll('svg[data-chart]')) {
  const data = JSON.parse(svg.dataset.chart);
  const mark = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  mark.setAttribute('class', 'tick'); mark.setAttribute('y1', 12); mark.setAttribute('y2', 206);
  mark.style.display = 'none';
  svg.append(mark);
  svg.addEventListener('mousemove', event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * 760 / box.width;
    let near = 0;
    data.x.forEach((place, at) => { if (Math.abs(place[0] - x) < Math.abs(data.x[near][0] - x)) near = at; });
    if (!data.x.length) return;
    mark.setAttribute('x1', data.x[near][0]); mark.setAttribute('x2', data.x[near][0]); mark.style.display = '';
    tip.replaceChildren(data.x[near][1], ...data.lines.flatMap(line => {
      const row = document.createElement('div');
      row.textContent = line.name + ': ' + line.y[near]; row.style.color = line.colour;
      return [row];
    }));
    tip.style.display = 'block';
    tip.style.left = Math.min(event.clientX + 14, innerWidth - 180) + 'px'; tip.style.top = event.clientY + 14 + 'px';
  });
  svg.addEventListener('mouseleave', () => { tip.style.display = 'none'; mark.style.display = 'none'; });
}
